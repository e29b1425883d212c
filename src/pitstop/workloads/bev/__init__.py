"""Bird's-eye-view segmentation: lift-splat with a Swin backbone on nuScenes."""
