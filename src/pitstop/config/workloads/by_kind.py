"""Which sections and rules belong to which `model.kind`."""

from dataclasses import dataclass, field

from pitstop.config.rules import RuleSet, loss_rules
from pitstop.config.sections import DataSection, LossSection, ModelSection


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadSections:
    """What a workload adds to the common sections.

    An outside workload passes `{"my_kind": WorkloadSections(...)}` to `load_config`. Values read
    from YAML reach its fields as text, so a field's type decides what `1e-4` or `off` means.

    Attributes:
        name: The workload, such as deblur.
        data: Class of the `data` section.
        model: Class of the `model` section.
        loss: Class of the `loss` section.
        rules: What the workload has to say about settings that go together.
    """

    name: str
    data: type[DataSection]
    model: type[ModelSection]
    loss: type[LossSection]
    rules: RuleSet = field(default_factory=RuleSet)

    @property
    def all_rules(self) -> RuleSet:
        """The workload's own rules and those that follow from its loss terms."""
        return self.rules + loss_rules(self.loss)
