"""Several engines behind one API, as replicas of a deployment on Ray Serve."""
