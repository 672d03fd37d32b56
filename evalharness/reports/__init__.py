"""Reports: views of saved records."""
