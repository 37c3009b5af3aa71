"""Methods of training: who exchanges what, and when."""
