"""Networks: layers, torsos chosen by the observation, heads with a stream for each action."""
