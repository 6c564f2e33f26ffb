"""The command line, `ister`.

Commands return data; `render` and `render_cluster` alone know how it looks, as text or as JSON. Nothing heavy
is imported before the command that needs it runs, so that `ister --help` answers at once.
"""
