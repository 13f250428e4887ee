"""A cluster in a box: API server subset, scheduler, controllers and kubelet over one model."""
