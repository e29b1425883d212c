"""What nuscenes-devkit makes of a set; run by an interpreter that has it, with a root and a folder.

Writes, for every key frame, the corners of boxes as each camera sees them and the map around the
car.
"""

import json
import sys
from pathlib import Path

import numpy as np

LAYERS = ("drivable_area", "ped_crossing", "walkway", "stop_line", "carpark_area")
LINES = ("road_divider", "lane_divider")


def main(root: str, output: str) -> None:
    from nuscenes.map_expansion.map_api import NuScenesMap  # pyright: ignore[reportMissingImports]
    from nuscenes.nuscenes import NuScenes  # pyright: ignore[reportMissingImports]
    from nuscenes.utils.geometry_utils import (  # pyright: ignore[reportMissingImports]
        BoxVisibility,
        view_points,
    )
    from nuscenes.utils.splits import (  # pyright: ignore[reportMissingImports]
        create_splits_scenes,
    )
    from pyquaternion import Quaternion  # pyright: ignore[reportMissingImports]

    devkit = NuScenes(version="v1.0-mini", dataroot=root, verbose=False)
    splits = create_splits_scenes()
    facts = {
        "scenes": [scene["name"] for scene in devkit.scene],
        "in_splits": [
            scene["name"] in {*splits["mini_train"], *splits["mini_val"]} for scene in devkit.scene
        ],
        "corners": {},
        "files": 0,
        "broken_lines": 0,
    }
    maps: dict[str, NuScenesMap] = {}
    arrays = {}
    for sample in devkit.sample:
        for channel, token in sample["data"].items():
            path = devkit.get_sample_data_path(token)
            facts["files"] += Path(path).is_file()
            if not channel.startswith("CAM"):
                continue
            _, boxes, intrinsics = devkit.get_sample_data(token, box_vis_level=BoxVisibility.ALL)
            for box in boxes:
                pixels = view_points(box.bottom_corners(), np.array(intrinsics), normalize=True)
                facts["corners"][f"{box.token}/{channel}"] = pixels[:2].T.tolist()
        lidar = devkit.get("sample_data", sample["data"]["LIDAR_TOP"])
        pose = devkit.get("ego_pose", lidar["ego_pose_token"])
        scene = devkit.get("scene", sample["scene_token"])
        place = devkit.get("log", scene["log_token"])["location"]
        if place not in maps:
            maps[place] = NuScenesMap(root, place)
        yaw_deg = np.degrees(Quaternion(pose["rotation"]).yaw_pitch_roll[0])
        patch = (*pose["translation"][:2], 100.0, 100.0)
        masks = maps[place].get_map_mask(patch, yaw_deg, list(LAYERS), (200, 200))
        # Their columns are ours forward, their rows ours across.
        arrays[sample["token"]] = masks.transpose(0, 2, 1)
        try:
            lines = maps[place].get_map_mask(patch, yaw_deg, list(LINES), (200, 200))
        except TypeError:
            facts["broken_lines"] += 1
        else:
            arrays[f"{sample['token']}.lines"] = lines.transpose(0, 2, 1)
    Path(output, "facts.json").write_text(json.dumps(facts))
    np.savez(Path(output, "masks.npz"), **arrays)


if __name__ == "__main__":
    main(*sys.argv[1:])
