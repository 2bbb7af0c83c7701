"""Who gets what is published: filters, routes, retained messages, sessions."""
