"""Tasks, one folder each: data, metric, reference designs, and how exported files are judged."""
