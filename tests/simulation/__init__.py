"""One broker and its clients on virtual time, from one seed."""
