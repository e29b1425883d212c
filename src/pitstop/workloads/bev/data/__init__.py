"""nuScenes: tables, maps, targets, samples."""
