"""`fluxmq replay gate`: whether measures of a candidate are worse than the baseline's by more than they may be."""
