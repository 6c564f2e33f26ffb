"""A segment whose leader is lost: fenced, brought level and sealed by a survivor (F1 to F3)."""
