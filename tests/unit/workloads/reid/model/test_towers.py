import warnings
from typing import Any

import pytest
import torch

from pitstop.errors import ConfigError
from pitstop.workloads.reid.model.adapters import AdaptedLinear, AdapterShape
from pitstop.workloads.reid.model.clip import ReidModel
from pitstop.workloads.reid.model.pretrained import copy_clip, load_clip
from tests.unit.workloads.reid.small_models import (
    BACKBONE,
    END,
    GRID,
    LENGTH,
    PATCH,
    random_batch,
    small_model,
    small_shape,
)

torch.set_num_threads(1)


def _clip(side: int = 3) -> Any:
    """A random CLIP of the same sizes, as `transformers` builds it; it sees squares only."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import CLIPConfig, CLIPModel
    image, text = BACKBONE.image, BACKBONE.text
    config = CLIPConfig(
        vision_config={
            "hidden_size": image.width,
            "intermediate_size": 4 * image.width,
            "num_hidden_layers": image.layers,
            "num_attention_heads": image.heads,
            "patch_size": PATCH,
            "image_size": side * PATCH,
        },
        text_config={
            "hidden_size": text.width,
            "intermediate_size": 4 * text.width,
            "num_hidden_layers": text.layers,
            "num_attention_heads": text.heads,
            "vocab_size": 20,
            "max_position_embeddings": LENGTH,
            "eos_token_id": END,
            "bos_token_id": 0,
            "pad_token_id": 1,
        },
        projection_dim=8,
    )
    torch.manual_seed(1)
    clip = CLIPModel(config).eval()
    with torch.no_grad():
        for parameter in clip.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return clip


def _ours(clip: Any, *, rank: int = 0) -> ReidModel:
    model = ReidModel(small_shape(rank=rank, grid=(3, 3))).eval()
    copy_clip(model, clip.state_dict(), source="a test")
    return model


def _pixels(images: torch.Tensor) -> torch.Tensor:
    mean = torch.tensor([0.48145466, 0.4578275, 0.40821073]).view(3, 1, 1)
    deviation = torch.tensor([0.26862954, 0.26130258, 0.27577711]).view(3, 1, 1)
    return (images.float() / 255 - mean) / deviation


@pytest.mark.parametrize("rank", [0, 2])
def test_the_image_tower_without_changes_is_that_of_clip(rank: int) -> None:
    clip = _clip()
    model = _ours(clip, rank=rank)
    images = torch.randint(0, 256, (4, 3, 12, 12), dtype=torch.uint8)
    with torch.no_grad():
        wanted = clip.vision_model(pixel_values=_pixels(images)).pooler_output
        wanted = clip.visual_projection(wanted)
        for modality in (0, 2):
            found = model.trunk(model.patches(images, modality), modality)[0]
            torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


def test_all_modalities_at_once_are_clip_four_times() -> None:
    clip = _clip()
    model = _ours(clip, rank=2)
    images = torch.randint(0, 256, (3, 4, 3, 12, 12), dtype=torch.uint8)
    images[:, 1::2] = images[:, 1::2, :1]
    with torch.no_grad():
        found = model.trunk(model.patches(images))
        for modality in (0, 2):
            wanted = clip.vision_model(pixel_values=_pixels(images[:, modality])).pooler_output
            wanted = clip.visual_projection(wanted)
            torch.testing.assert_close(found[modality], wanted, rtol=1e-5, atol=1e-5)


def test_a_grey_image_through_one_channel_is_the_same_image_through_three() -> None:
    clip = _clip()
    model = _ours(clip)
    grey = torch.randint(0, 256, (2, 1, 12, 12), dtype=torch.uint8).expand(-1, 3, -1, -1)
    with torch.no_grad():
        one, three, other = (model.trunk(model.patches(grey, m), m) for m in (1, 0, 3))
    torch.testing.assert_close(one, three, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(other, three, rtol=1e-5, atol=1e-5)


def test_the_text_tower_is_that_of_clip() -> None:
    clip = _clip()
    model = _ours(clip)
    captions = random_batch(6).tokens
    with torch.no_grad():
        wanted = clip.text_projection(clip.text_model(input_ids=captions).pooler_output)
        torch.testing.assert_close(model.text(captions), wanted, rtol=1e-5, atol=1e-5)


def test_padding_behind_the_end_of_a_caption_changes_neither_feature_nor_gradient() -> None:
    long = torch.full((3, 7), 3)
    for row, end in enumerate((1, 3, 2)):
        long[row, end] = END
    features, gradients = [], []
    for captions in (long, long[:, :4]):
        text = small_model().double().text
        feature = text(captions)
        (feature * torch.arange(8.0)).sum().backward()
        features.append(feature.detach())
        gradients.append([parameter.grad for parameter in text.parameters()])
    torch.testing.assert_close(features[1], features[0], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-12, atol=1e-12)


def test_weights_of_another_size_are_refused_by_name() -> None:
    state = _clip().state_dict()
    state["visual_projection.weight"] = state["visual_projection.weight"][:4]
    model = ReidModel(small_shape(grid=(3, 3)))
    with pytest.raises(ConfigError, match=r"visual_projection.weight of a test is 4x16.*8x16"):
        copy_clip(model, state, source="a test")


def test_places_are_stretched_over_another_grid() -> None:
    clip = _clip()
    model = ReidModel(small_shape(grid=GRID))
    copy_clip(model, clip.state_dict(), source="a test")
    places = clip.state_dict()["vision_model.embeddings.position_embedding.weight"]
    torch.testing.assert_close(model.patches.positions[0], places[0])
    assert model.patches.positions.shape == (1 + GRID[0] * GRID[1], 16)


def _openai_names(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """What OpenAI's own code calls the weights, with what its archives hold beside them."""
    names = {
        "vision_model.embeddings.patch_embedding.weight": "visual.conv1.weight",
        "vision_model.embeddings.class_embedding": "visual.class_embedding",
        "vision_model.embeddings.position_embedding.weight": "visual.positional_embedding",
        "text_model.embeddings.token_embedding.weight": "token_embedding.weight",
        "text_model.embeddings.position_embedding.weight": "positional_embedding",
        "logit_scale": "logit_scale",
    }
    found = {"input_resolution": torch.tensor(12), "vocab_size": torch.tensor(20)}
    for name, value in state.items():
        if name.endswith("_projection.weight"):
            found["visual.proj" if "visual" in name else "text_projection"] = value.T.clone()
        elif "q_proj" in name:
            parts = [state[name.replace("q_proj", f"{letter}_proj")] for letter in "qkv"]
            place = _openai_place(name).replace("self_attn.q_proj.", "attn.in_proj_")
            found[place] = torch.cat(parts)
        elif "k_proj" not in name and "v_proj" not in name:
            found[names.get(name) or _openai_place(name)] = value
    return found


def _openai_place(name: str) -> str:
    for ours, theirs in (
        ("vision_model.encoder.layers", "visual.transformer.resblocks"),
        ("text_model.encoder.layers", "transformer.resblocks"),
        ("layer_norm1", "ln_1"),
        ("layer_norm2", "ln_2"),
        ("self_attn.out_proj", "attn.out_proj"),
        ("mlp.fc1", "mlp.c_fc"),
        ("mlp.fc2", "mlp.c_proj"),
        ("vision_model.pre_layrnorm", "visual.ln_pre"),
        ("vision_model.post_layernorm", "visual.ln_post"),
        ("text_model.final_layer_norm", "ln_final"),
    ):
        name = name.replace(ours, theirs)
    return name


@pytest.mark.parametrize("wrap", [dict, lambda state: {"model": state}])
def test_a_file_of_openais_is_read_to_the_bit(tmp_path: Any, wrap: Any) -> None:
    clip = _clip()
    torch.save(wrap(_openai_names(clip.state_dict())), tmp_path / "ViT.pt")
    found = ReidModel(small_shape(rank=0, grid=(3, 3))).eval()
    assert load_clip(found, tmp_path / "ViT.pt") == ()
    images = torch.randint(0, 256, (2, 4, 3, 12, 12), dtype=torch.uint8)
    captions = random_batch(2).tokens
    wanted = _ours(clip)
    with torch.no_grad():
        assert torch.equal(found.trunk(found.patches(images)), wanted.trunk(wanted.patches(images)))
        assert torch.equal(found.text(captions), wanted.text(captions))


def test_a_resnet_of_openais_is_refused_by_name(tmp_path: Any) -> None:
    state = {**_openai_names(_clip().state_dict()), "visual.layer1.0.conv1.weight": torch.ones(1)}
    torch.save(state, tmp_path / "RN50.pt")
    with pytest.raises(ConfigError, match=r"1 of its .* such as visual\.layer1\.0\.conv1.*ResNets"):
        load_clip(ReidModel(small_shape(grid=(3, 3))), tmp_path / "RN50.pt")
    with pytest.raises(ConfigError, match="weights_key has no effect"):
        load_clip(ReidModel(small_shape(grid=(3, 3))), tmp_path, key="params")


def test_weights_are_read_from_a_folder(tmp_path: Any) -> None:
    clip = _clip()
    clip.save_pretrained(tmp_path)
    model = ReidModel(small_shape(grid=(3, 3)))
    load_clip(model, tmp_path)
    torch.testing.assert_close(
        model.trunk.image_projection, clip.visual_projection.weight, rtol=0, atol=0
    )


def test_a_folder_without_weights_is_an_error_of_one_line(tmp_path: Any) -> None:
    with pytest.raises(ConfigError, match="cannot be read as a CLIP model") as caught:
        load_clip(small_model(), tmp_path)
    assert "\n" not in str(caught.value)


def test_the_fast_way_gives_what_the_textbook_way_gives() -> None:
    fast, textbook = small_model(), small_model(kernels="reference")
    textbook.load_state_dict(fast.state_dict())
    batch = random_batch(5)
    outputs = []
    for model in (fast, textbook):
        model.neck.dropout.p = 0.0
        output = model(batch.images, batch.present, batch.tokens)
        (output.logits.logsumexp(1).sum() + output.alone.square().sum()).backward()
        outputs.append(output)
    for found, wanted in zip(*outputs, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    for (name, found), wanted in zip(fast.named_parameters(), textbook.parameters(), strict=True):
        if found.grad is not None or wanted.grad is not None:
            torch.testing.assert_close(
                found.grad, wanted.grad, rtol=1e-3, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}"
            )


def test_every_modality_has_a_change_of_its_own() -> None:
    torch.manual_seed(0)
    linear = AdaptedLinear(6, 9, adapters=AdapterShape(modalities=4, rank=2), parts=3, std=1.0)
    with torch.no_grad():
        linear.adapter_up.normal_()
    x = torch.randn(4, 5, 6)
    together = linear(x)
    for modality in range(4):
        parts = [linear.by_itself(x[modality], modality, part) for part in range(3)]
        torch.testing.assert_close(together[modality], torch.cat(parts, dim=-1))
        torch.testing.assert_close(
            linear(x[modality : modality + 1], modality)[0], together[modality]
        )
    assert not torch.allclose(
        linear(x[:1].expand(4, -1, -1))[0], linear(x[:1].expand(4, -1, -1))[1]
    )
