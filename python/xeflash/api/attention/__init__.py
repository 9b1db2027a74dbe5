"""The functions of attention."""
