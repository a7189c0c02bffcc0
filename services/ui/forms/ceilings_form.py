"""The form for a measurement of ceilings: what a device itself reaches."""

from __future__ import annotations

from kernalyse.services.core.errors import KernalyseError
from kernalyse.services.core.model import CeilingMeasurement, RunSpec
from kernalyse.services.ui.forms.form import BuiltForm, Group, Place, PlacedForm, Values, backend_of, place_options, text_of


class CeilingsForm(PlacedForm):
    """Backend and device."""

    key = "ceilings"
    heading = "Ceilings"

    def groups(self, place: Place) -> tuple[Group, ...]:
        note = "Memory levels, multiply-adds and tensor cores, as the device itself reaches them. Rooflines use them from then on."
        return (Group("Where", self.PLACE, note=note),)

    def build(self, values: Values, place: Place) -> BuiltForm:
        work = CeilingMeasurement(backend_of(values), text_of(values, "device") or None)
        return BuiltForm(RunSpec(work), {}, command=("kernalyse", "ceilings", *place_options(values, place)))

    def field_of(self, error: KernalyseError) -> str:
        return "device" if error.subject.startswith("device ") else "backend"
