"""What is asked of a model, one folder a domain: data, metric, reference designs, how exports are judged."""
