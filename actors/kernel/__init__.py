"""The lifecycle kernel: plugins come and go while everything else stays consistent."""
