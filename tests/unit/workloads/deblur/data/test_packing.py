"""A pack stands in for its folder sample by sample, and damage of either is named."""

import pickle
import shutil
from pathlib import Path

import pytest
import torch

from pitstop.config.workloads.deblur import DeblurData
from pitstop.data.host_memory import SizedSamples
from pitstop.data.pack import Pack, PackWriter
from pitstop.errors import DataError
from pitstop.workloads.deblur.data.dataset import ClipSample, ClipSamples, eval_clips, train_clips
from pitstop.workloads.deblur.data.packing import Frames, check_clips, pack_clips
from pitstop.workloads.deblur.data.storage import FolderStorage, open_storage
from pitstop.workloads.deblur.synthetic import make_clips

torch.set_num_threads(1)

HEIGHT, WIDTH, FRAMES = 32, 48, 4
CLIP = Path("train") / "MADE0001_07_00"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("packing") / "clips"
    clips = {"train": 2, "test": 1}
    make_clips(root, clips=clips, frames=FRAMES, size=(HEIGHT, WIDTH), seed=0)
    return root


@pytest.fixture
def own(made: Path, tmp_path: Path) -> Path:
    """A copy to break."""
    return Path(shutil.copytree(made, tmp_path / "clips"))


@pytest.fixture(scope="module", params=["decoded", "encoded"])
def packed(made: Path, request: pytest.FixtureRequest) -> Path:
    frames: Frames = request.param
    path = made.with_name(f"{frames}.pack")
    pack_clips(made, path, frames=frames)
    return path


def section(root: Path, **settings: object) -> DeblurData:
    sizes = {"spike_height": HEIGHT // 2, "spike_width": WIDTH // 2, "voxel_bins": 4}
    return DeblurData.model_validate({"root": root, "crop": 16, "clip_len": 2} | sizes | settings)


def equal(one: ClipSample, other: ClipSample) -> bool:
    assert one.spikes is not None
    assert other.spikes is not None
    return all(
        torch.equal(a, b)
        for a, b in (
            (one.blur, other.blur),
            (one.sharp, other.sharp),
            (one.spikes, other.spikes),
            (one.fresh, other.fresh),
        )
    )


def same_samples(one: ClipSamples, other: ClipSamples) -> bool:
    assert len(one) == len(other)
    return all(
        equal(one.sample(epoch, index), other.sample(epoch, index))
        for epoch in range(3)
        for index in range(len(one))
    )


def test_samples_of_a_pack_are_those_of_its_folder(made: Path, packed: Path) -> None:
    for crop in (16, None):
        folder, pack = (
            train_clips(section(root, crop=crop), (), seed=0, with_spikes=True)
            for root in (made, packed)
        )
        assert same_samples(folder, pack)
    folder, pack = (eval_clips(section(root), with_spikes=True) for root in (made, packed))
    assert same_samples(folder, pack)
    assert pack.name_of(0) == folder.name_of(0)


def test_a_pack_travels_to_workers_as_its_path(packed: Path) -> None:
    samples = train_clips(section(packed), (), seed=0, with_spikes=True)
    sent = pickle.dumps(samples)
    assert len(sent) < 5_000
    assert equal(pickle.loads(sent).sample(0, 1), samples.sample(0, 1))


def test_whole_datasets_and_packs_pass(made: Path, packed: Path) -> None:
    folder, pack = check_clips(made), check_clips(packed)
    assert (folder.problems, pack.problems) == ((), ())
    assert (folder.packed, pack.packed) == (False, True)
    for found in (folder, pack):
        assert found.splits["train"].sequences == 2
        kinds = {"blur": 2 * FRAMES, "sharp": 2 * FRAMES, "spike": 2 * FRAMES}
        assert found.splits["train"].files == kinds
        assert set(found.splits) == {"train", "test"}


def test_a_pack_says_how_large_it_is(own: Path, tmp_path: Path) -> None:
    summary = pack_clips(own, tmp_path / "a.pack", frames="decoded")
    assert summary.field_bytes["blur"] == 3 * FRAMES * HEIGHT * WIDTH * 3
    assert summary.members == 3 * FRAMES * 3 + 1
    assert summary.size_bytes == (tmp_path / "a.pack").stat().st_size
    files = [path for path in own.rglob("*") if path.is_file()]
    assert summary.source_bytes == sum(path.stat().st_size for path in files)


def cut(path: Path, share: float) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])


def test_everything_wrong_with_a_dataset_is_named_at_once(own: Path) -> None:
    (own / CLIP / "blur" / "000000.png").write_bytes(b"")
    cut(own / CLIP / "sharp" / "000001.png", 0.5)
    (own / CLIP / "sharp" / "000002.png").unlink()
    cut(own / CLIP / "spike" / "000000.dat", 0.99)
    cut(own / CLIP / "spike" / "000001.dat", 0.5)
    (own / CLIP / "spike" / "000003.dat").unlink()
    problems = "\n".join(check_clips(own).problems)
    for expected in (
        "blur/000000.png is not an image: it is empty",
        "sharp/000001.png cannot be decoded: image file is truncated",
        "sharp has no frame 000002, which blur has",
        "spike/000000.dat has 2661 bytes, no whole number",
        "spike/000001.dat has 28 spike planes, and most files of its clip have",
        "cannot read " + str(own / CLIP / "spike" / "000003.dat"),
    ):
        assert expected in problems, problems
    assert "MADE0000" not in problems


def test_a_split_that_is_not_there_or_holds_nothing_is_named(own: Path) -> None:
    assert check_clips(own, section(own)).problems == ()
    shutil.rmtree(own / "test")
    assert check_clips(own, section(own)).problems == (f"there is no folder {own / 'test'}",)
    (own / "test").mkdir()
    [problem] = check_clips(own, section(own)).problems
    assert problem.startswith(f"{own / 'test'} holds no clips")


def test_a_clip_without_spikes_among_others_is_named(own: Path) -> None:
    shutil.rmtree(own / CLIP / "spike")
    assert check_clips(own).problems == (
        f"{own / CLIP} has no folder spike, which other clips have",
    )


def test_spikes_of_unknown_size_are_left_out_and_said(own: Path) -> None:
    (own / "config.yaml").unlink()
    found = check_clips(own)
    assert found.problems == ()
    [note] = found.notes
    assert "spikes were left out" in note
    assert "spike" not in found.splits["train"].files
    assert "spike" in check_clips(own, section(own)).splits["train"].files


def test_both_blurred_versions_are_packed_and_shared_files_once(own: Path, tmp_path: Path) -> None:
    for split in ("train", "test"):
        for clip in (own / split).iterdir():
            shutil.copytree(clip / "blur", clip / "blur_gamma")
    summary = pack_clips(own, tmp_path / "a.pack", frames="encoded")
    assert summary.members == 3 * FRAMES * 4 + 1
    gamma = section(tmp_path / "a.pack", blur="blur_gamma")
    assert len(train_clips(gamma, (), seed=0, with_spikes=True)) == 2 * (FRAMES - 1)
    only = pack_clips(own, tmp_path / "b.pack", frames="encoded", section=section(own))
    assert only.members == 3 * FRAMES * 3 + 1


@pytest.mark.parametrize("frames", ["decoded", "encoded"])
def test_a_broken_dataset_is_not_packed_and_leaves_nothing(
    own: Path, tmp_path: Path, frames: Frames
) -> None:
    (own / CLIP / "sharp" / "000002.png").unlink()
    with pytest.raises(DataError, match=r"no frame 000002.*pitstop data check"):
        pack_clips(own, tmp_path / "a.pack", frames=frames)
    assert [path.name for path in tmp_path.iterdir()] == ["clips"]


def test_an_image_that_breaks_off_stops_the_packing(own: Path, tmp_path: Path) -> None:
    cut(own / CLIP / "sharp" / "000001.png", 0.5)
    with pytest.raises(DataError, match=r"sharp/000001\.png cannot be decoded"):
        pack_clips(own, tmp_path / "a.pack", frames="decoded")
    assert [path.name for path in tmp_path.iterdir()] == ["clips"]


def test_a_damaged_member_of_a_pack_is_named(made: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.pack"
    pack_clips(made, path, frames="decoded")
    name = f"{CLIP.as_posix()}/sharp/000001.png"
    data = bytearray(path.read_bytes())
    data[Pack(path).members[name].offset + 5] ^= 1
    path.write_bytes(data)
    assert check_clips(path).problems == (f"{path / name} is damaged: its bytes have changed",)


def test_a_member_missing_from_a_pack_is_named(made: Path, tmp_path: Path) -> None:
    whole, path = tmp_path / "whole.pack", tmp_path / "a.pack"
    pack_clips(made, whole, frames="decoded")
    pack = Pack(whole)
    missing = f"{CLIP.as_posix()}/sharp/000001.png"
    with PackWriter(path, workload="deblur") as writer:
        for member in pack.members.values():
            if member.name != missing:
                content = pack.content(member.name)
                plain = content.tobytes() if member.shape is None else content
                writer.add(member.name, member.field, plain)
    [problem] = check_clips(path).problems
    assert problem == f"{path / CLIP / 'sharp'} has no frame 000001, which blur has"
    with pytest.raises(DataError, match="has no frame 000001"):
        train_clips(section(path), (), seed=0, with_spikes=True)


def test_what_is_neither_folder_nor_pack_of_clips_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "file"
    other.write_text("no pack")
    with pytest.raises(DataError, match="neither a folder of clips nor a pack"):
        check_clips(other)
    with PackWriter(tmp_path / "bev.pack", workload="bev"):
        pass
    with pytest.raises(DataError, match="a pack of bev, not of clips"):
        check_clips(tmp_path / "bev.pack")
    for empty in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(DataError, match="holds no clips"):
            check_clips(empty)


def test_a_pack_is_not_packed_again(packed: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is a pack already"):
        pack_clips(packed, tmp_path / "a.pack", frames="decoded")


def test_a_folder_that_may_not_be_read_is_an_error_and_not_an_empty_one(
    own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    allowed = Path.iterdir

    def iterdir(folder: Path) -> object:
        if folder.name == "sharp":
            raise PermissionError(13, "Permission denied")
        return allowed(folder)

    monkeypatch.setattr(Path, "iterdir", iterdir)
    for problem in check_clips(own).problems:
        assert problem.endswith("sharp: Permission denied")
    with pytest.raises(DataError, match="Permission denied"):
        train_clips(section(own), (), seed=0, with_spikes=False)


def test_a_dataset_says_its_sequences_and_its_size(made: Path) -> None:
    samples = train_clips(section(made), (), seed=0, with_spikes=False)
    assert samples.sequences.tolist() == [0, 0, 0, 1, 1, 1]
    assert isinstance(samples, SizedSamples)
    assert samples.decoded_bytes == 2 * FRAMES * 2 * HEIGHT * WIDTH * 3
    assert train_clips(section(made), (), seed=0, with_spikes=True).decoded_bytes is None


def test_hidden_files_are_no_clips(own: Path) -> None:
    (own / "train" / ".cache").mkdir()
    (own / CLIP / "blur" / "._000000.png").write_bytes(b"")
    assert check_clips(own).problems == ()
    assert isinstance(open_storage(own), FolderStorage)
