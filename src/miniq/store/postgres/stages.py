from miniq.store.base import WithoutStages


class Stages(WithoutStages):
    pass
