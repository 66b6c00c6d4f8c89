"""Tasks, one folder each: data, metric, reference designs, and evaluation of exported files."""
