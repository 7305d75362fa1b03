"""What to send: prompts, arrivals, scenarios and files, the driver that sends it, and the metrics of the answers."""
