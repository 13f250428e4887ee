"""The cluster model: scheduler, controllers and kubelet, as pure decisions with thin loops."""
