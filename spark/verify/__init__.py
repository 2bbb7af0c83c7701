"""`fluxmq replay verify`: what a broker had to deliver, beside what it delivered."""
