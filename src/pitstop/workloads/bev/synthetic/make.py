"""Generated nuScenes sets: a small city seen by six cameras and a lidar from a moving car.

    <root>/v1.0-mini/*.json  samples/CAM_FRONT/*.jpg  samples/LIDAR_TOP/*.pcd.bin
    <root>/maps/*.png  maps/expansion/<place>.json

Tables, maps, calibration and images agree with each other and with what nuscenes-devkit expects.
What is in an image follows from the ground and the boxes that the tables state: a set can be
learned from, and anything that reads it can be held against the truth. The same seed makes the same
bytes with the same versions of numpy and Pillow.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from PIL import Image

from pitstop.data.new_dataset import folder_bytes, new_dataset, refuse_used_root
from pitstop.errors import DataError
from pitstop.workloads.bev.data.poses import Floats
from pitstop.workloads.bev.data.raster import Ints
from pitstop.workloads.bev.data.splits import MINI_TRAIN, MINI_VAL, SPLITS_FILE
from pitstop.workloads.bev.synthetic.actors import (
    KINDS,
    REACH_M,
    SAMPLE_S,
    Actors,
    Drive,
    make_actors,
    make_drive,
)
from pitstop.workloads.bev.synthetic.render import (
    Boxes,
    CameraView,
    Picture,
    Sensor,
    Weather,
    count_pixels,
    finish,
    make_sensors,
    scan,
)
from pitstop.workloads.bev.synthetic.tables import TableWriter, expansion, link, visibility_token
from pitstop.workloads.bev.synthetic.world import City
from pitstop.workloads.draws import Draws

VERSION: Final = "v1.0-mini"

PLACES: Final = (
    "boston-seaport",
    "singapore-onenorth",
    "singapore-hollandvillage",
    "singapore-queenstown",
)
"""Where scenes can be: the only names that readers of map expansions know."""
_START_US: Final = 1_530_000_000_000_000
_BUILDING_REACH_M: Final = 70.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeWorld:
    """A set that was generated."""

    root: str
    version: str
    scenes: dict[str, int]
    """By split."""
    samples: int
    """In all scenes together."""
    boxes: int
    height: int
    width: int
    seed: int
    size_bytes: int
    took_s: float


def make_bev(
    root: Path,
    *,
    scenes: int = 10,
    samples: int = 20,
    size: tuple[int, int] = (450, 800),
    seed: int = 0,
) -> MadeWorld:
    """Generate a set; the folder appears whole or not at all.

    A fifth of the scenes, at least one, is the split mini_val, the others are mini_train. The first
    ten have the names of the official small set; with more, a splits.json says which is which.

    Args:
        root: Folder of the set, which must not hold anything yet.
        scenes: Number of scenes, at least two.
        samples: Key frames of each scene, half a second apart.
        size: Height and width of an image; 900x1600 or the same scaled.
        seed: Decides everything; a scene does not depend on how many others there are.

    Raises:
        DataError: Where the sizes cannot be had, the folder is in use or cannot be written.
    """
    started = time.perf_counter()
    _check_request(root, scenes, samples, size)
    splits = _split_names(scenes)
    names = sorted(name for split in splits.values() for name in split)
    with new_dataset(root, what="a set") as folder:
        maker = _Maker(folder, size, seed)
        for name in names:
            maker.make_scene(name, samples)
        maker.finish()
        if scenes > len(MINI_TRAIN) + len(MINI_VAL):
            text = json.dumps(splits, indent=1)
            (folder / SPLITS_FILE).write_text(text, encoding="utf-8")
        size_bytes = folder_bytes(folder)
    return MadeWorld(
        root=str(root),
        version=VERSION,
        scenes={split: len(chosen) for split, chosen in splits.items()},
        samples=scenes * samples,
        boxes=len(maker.tables.rows["sample_annotation"]),
        height=size[0],
        width=size[1],
        seed=seed,
        size_bytes=size_bytes,
        took_s=time.perf_counter() - started,
    )


def _check_request(root: Path, scenes: int, samples: int, size: tuple[int, int]) -> None:
    height, width = size
    if height < 36 or height > 900 or height * 16 != width * 9:
        raise DataError(
            f"images of {height}x{width} cannot be made: they must be 9 high to 16 wide, from "
            "36x64 to 900x1600"
        )
    if scenes < 2 or samples < 1:
        raise DataError("there is nothing to make: ask for at least two scenes of one sample")
    refuse_used_root(root)


def _split_names(scenes: int) -> dict[str, list[str]]:
    val = max(1, scenes // 5)
    train = scenes - val
    more = [f"scene-{2001 + number}" for number in range(scenes)]
    train_names = [*MINI_TRAIN, *more][:train]
    rest = [name for name in more if name not in train_names]
    return {"mini_train": train_names, "mini_val": [*MINI_VAL, *rest][:val]}


class _Maker:
    """Writes scenes one after the other."""

    def __init__(self, folder: Path, size: tuple[int, int], seed: int) -> None:
        self.tables = TableWriter(seed)
        self._folder = folder
        self._size = size
        self._seed = seed
        self._cities: dict[int, City] = {}
        self._logs: dict[int, list[str]] = {}
        self._has_channels = False

    def make_scene(self, name: str, samples: int) -> None:
        number = int(name.removeprefix("scene-"))
        draws = Draws(self._seed, 0x5CE, number)
        place = draws.below(len(PLACES))
        if place not in self._cities:
            self._cities[place] = City(self._seed, place)
        city = self._cities[place]
        drive = make_drive(city, draws, samples)
        weather = Weather(
            gain=draws.uniform(0.72, 1.12), sun=draws.uniform(0, 6), fog_m=draws.uniform(90, 220)
        )
        sensors = make_sensors(draws, self._size)
        scene = _Scene(
            name=name,
            city=city,
            drive=drive,
            actors=make_actors(city, drive, draws),
            sensors=sensors,
            views=[CameraView(sensor, self._size, weather) for sensor in sensors[:-1]],
            start_us=_START_US + number * 1_000_000_000,
            samples=samples,
        )
        self._add_scene(scene, place)
        rows = [self._make_sample(scene, sample, draws) for sample in range(samples)]
        link(rows)
        self.tables.rows["sample"].extend(rows)

    def finish(self) -> None:
        """Write tables and maps."""
        for place, logs in sorted(self._logs.items()):
            location = PLACES[place]
            token = self.tables.token("map", location)
            file = f"maps/{token}.png"
            self.tables.add(
                "map", token=token, category="semantic_prior", filename=file, log_tokens=logs
            )
            (self._folder / "maps" / "expansion").mkdir(parents=True, exist_ok=True)
            is_road = self._cities[place].ground[::16, ::16].T[::-1] > 0
            Image.fromarray(np.where(is_road, np.uint8(255), np.uint8(0))).save(self._folder / file)
            text = json.dumps(expansion(self._cities[place], self.tables.token))
            path = self._folder / "maps" / "expansion" / f"{location}.json"
            path.write_text(text, encoding="utf-8")
        self.tables.add_instances()
        self.tables.write(self._folder / VERSION)

    def _add_scene(self, scene: "_Scene", place: int) -> None:
        token, name = self.tables.token, scene.name
        if not self._has_channels:
            self.tables.add_sensor_channels(scene.sensors)
            self._has_channels = True
            for sensor in scene.sensors:
                (self._folder / "samples" / sensor.channel).mkdir(parents=True)
        for sensor in scene.sensors:
            self.tables.add_calibration(name, sensor)
        log = token("log", name)
        self._logs.setdefault(place, []).append(log)
        self.tables.add(
            "log",
            token=log,
            logfile=f"made-{name}",
            vehicle="made",
            date_captured="2018-06-26",
            location=PLACES[place],
        )
        self.tables.add(
            "scene",
            token=token("scene", name),
            name=name,
            description="generated",
            log_token=log,
            nbr_samples=scene.samples,
            first_sample_token=token("sample", name, 0),
            last_sample_token=token("sample", name, scene.samples - 1),
        )

    def _make_sample(self, scene: "_Scene", sample: int, draws: Draws) -> dict[str, object]:
        token = self.tables.token
        time_s = sample * SAMPLE_S
        at_us = scene.start_us + round(time_s * 1e6)
        car = scene.car(time_s)
        present, boxes = scene.boxes(time_s, car)
        pictures = []
        for view, sensor in zip(scene.views, scene.sensors[:-1], strict=True):
            pictures.append(view.render(scene.city, car, boxes))
            self._add_file(scene, (sample, at_us), sensor, car)
            pixels = finish(pictures[-1].colours, draws)
            Image.fromarray(pixels).save(self._file(scene, at_us, sensor), quality=88)
        points, hits = scan(scene.sensors[-1], boxes)
        self._add_file(scene, (sample, at_us), scene.sensors[-1], car)
        path = self._file(scene, at_us, scene.sensors[-1])
        path.write_bytes(points.astype("<f4").tobytes())
        self._add_boxes(scene, sample, present, (boxes, pictures, hits))
        return {
            "token": token("sample", scene.name, sample),
            "timestamp": at_us,
            "scene_token": token("scene", scene.name),
        }

    def _file(self, scene: "_Scene", at_us: int, sensor: Sensor) -> Path:
        ending = "pcd.bin" if sensor.intrinsics is None else "jpg"
        name = f"made-{scene.name}__{sensor.channel}__{at_us}.{ending}"
        return self._folder / "samples" / sensor.channel / name

    def _add_file(
        self,
        scene: "_Scene",
        moment: tuple[int, int],
        sensor: Sensor,
        car: tuple[float, float, float],
    ) -> None:
        sample, at_us = moment
        token = self.tables.token
        stand = token("ego_pose", scene.name, sample, sensor.channel)
        path = self._file(scene, at_us, sensor)
        is_camera = sensor.intrinsics is not None
        self.tables.add(
            "ego_pose",
            token=stand,
            timestamp=at_us,
            translation=[car[0], car[1], 0.0],
            rotation=_heading_quaternion(car[2]),
        )
        chain = [("prev", sample - 1), ("next", sample + 1)]
        self.tables.add(
            "sample_data",
            token=token("sample_data", scene.name, sample, sensor.channel),
            sample_token=token("sample", scene.name, sample),
            ego_pose_token=stand,
            calibrated_sensor_token=token("calibrated_sensor", scene.name, sensor.channel),
            timestamp=at_us,
            fileformat="jpg" if is_camera else "pcd",
            is_key_frame=True,
            height=self._size[0] if is_camera else 0,
            width=self._size[1] if is_camera else 0,
            filename=str(path.relative_to(self._folder)),
            **{
                way: token("sample_data", scene.name, other, sensor.channel)
                if 0 <= other < scene.samples
                else ""
                for way, other in chain
            },
        )

    def _add_boxes(
        self,
        scene: "_Scene",
        sample: int,
        present: Ints,
        seen: "tuple[Boxes, Sequence[Picture], Ints]",
    ) -> None:
        boxes, pictures, hits = seen
        token = self.tables.token
        shown, whole = count_pixels(pictures, len(boxes))
        places, headings = scene.stands(sample * SAMPLE_S)
        for number, actor in enumerate(present.tolist()):
            kind = KINDS[int(boxes.kind[number])].name
            height = float(boxes.size[number, 2])
            moves = scene.actors.speed[actor] > 0
            attribute = token("vehicle.moving" if moves else "vehicle.parked")
            self.tables.add(
                "sample_annotation",
                token=token("sample_annotation", scene.name, sample, actor),
                sample_token=token("sample", scene.name, sample),
                instance_token=token("instance", scene.name, actor),
                category_token=token("category", kind),
                attribute_tokens=[attribute] if kind.startswith("vehicle") else [],
                visibility_token=visibility_token(int(shown[number]), int(whole[number])),
                translation=[*places[actor].tolist(), height / 2],
                size=boxes.size[number].tolist(),
                rotation=_heading_quaternion(float(headings[actor])),
                num_lidar_pts=int(hits[number]),
                num_radar_pts=0,
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scene:
    name: str
    city: City
    drive: Drive
    actors: Actors
    sensors: Sequence[Sensor]
    views: Sequence[CameraView]
    start_us: int
    samples: int

    def car(self, time_s: float) -> tuple[float, float, float]:
        """Say where the car that looks is, and where it heads."""
        place, ahead = self.drive.at(time_s)
        at, heading = self.city.stands(place[None], ahead[None])
        return float(at[0, 0]), float(at[0, 1]), float(heading[0])

    def stands(self, time_s: float) -> tuple[Floats, Floats]:
        """Say where everybody is in the world, and where they head."""
        return self.city.stands(self.actors.at(time_s), self.actors.ahead)

    def boxes(self, time_s: float, car: tuple[float, float, float]) -> tuple[Ints, Boxes]:
        """Give those near the car as it sees them, and who they are; buildings come last."""
        places, headings = self.stands(time_s)
        present = np.flatnonzero(np.hypot(*(places - car[:2]).T) < REACH_M)
        plan = np.array([building.centre for building in self.city.buildings])
        stand, turn = self.city.stands(plan, np.broadcast_to([1.0, 0.0], plan.shape))
        near = np.flatnonzero(np.hypot(*(stand - car[:2]).T) < _BUILDING_REACH_M)
        built = np.array([self.city.buildings[number].size for number in near]).reshape(-1, 3)
        size = np.concatenate((self.actors.size[present], built))
        at = np.concatenate((places[present], stand[near])) - car[:2]
        cosine, sine = np.cos(car[2]), np.sin(car[2])
        centre = np.stack(
            (
                cosine * at[:, 0] + sine * at[:, 1],
                cosine * at[:, 1] - sine * at[:, 0],
                size[:, 2] / 2,
            ),
            axis=1,
        )
        return present, Boxes(
            centre=centre,
            heading=np.concatenate((headings[present], turn[near])) - car[2],
            size=size,
            kind=np.concatenate((self.actors.kind[present], np.full(len(near), -1))),
            look=np.concatenate((self.actors.look[present], near * 7919)),
        )


def _heading_quaternion(heading: float) -> list[float]:
    return [float(np.cos(heading / 2)), 0.0, 0.0, float(np.sin(heading / 2))]
