"""A model of re-identification as a function of tensors, for other programs."""

import torch
from torch import Tensor, nn

from pitstop.train.task import ExportForm
from pitstop.workloads.reid.data.batch import ReidBatch
from pitstop.workloads.reid.model.clip import ReidModel


class RecordFeatures(nn.Module):
    """The feature of a record, of length 1, from all that it has.

    `ReidModel.encode` looks at the mask on the host and encodes only what is there. Here all is
    encoded and the mask decides, so that nothing depends on values.
    """

    def __init__(self, model: ReidModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor, present: Tensor, captions: Tensor) -> Tensor:
        """Describe (B, 4, 3, H, W) bytes and (B, T) tokens, of which (B, 5) are there: (B, d)."""
        seen = self.model.trunk(self.model.patches(images))
        read = self.model.text(captions).unsqueeze(0)
        tokens = torch.cat([seen, read.to(seen.dtype)]).transpose(0, 1)
        return self.model.describe(torch.where(present[..., None], tokens, 0), present)


def reid_export_form(model: ReidModel, blank: ReidBatch) -> ExportForm:
    """Give a model with an example: a record that has all but its pencil drawing.

    Args:
        model: In evaluation mode.
        blank: A batch of one, for its shapes and its caption's end token.
    """
    draw = torch.Generator().manual_seed(0)
    present = blank.present.clone()
    present[:, 2] = False
    inputs = {
        "images": torch.randint(
            0, 256, blank.images.shape, generator=draw, dtype=blank.images.dtype
        ),
        "present": present,
        "captions": blank.tokens,
    }
    with torch.no_grad():
        tokens = model.encode(inputs["images"], present, inputs["captions"])
        expected = model.describe(tokens, present)
    return ExportForm(
        module=RecordFeatures(model), inputs=inputs, output="features", expected=expected
    )
