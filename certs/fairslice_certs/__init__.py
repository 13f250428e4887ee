"""CA, serving certificates, rotation, hot reload and caBundle injection."""
