"""The hook that caches the maps of a frozen trunk."""

from mmengine.hooks import Hook

from vitdense.mm.registry import HOOKS


@HOOKS.register_module()
class CacheFeaturesHook(Hook):
    """Run a frozen trunk once for every image and view of a training, and for every image of its validation.

    Args:
        folder: Folder of the maps; see `MapStore`.
        dtype: Data type of stored maps: ``float16`` or ``float32``.
    """

    def __init__(self, folder: str, dtype: str = "float16") -> None:
        self.folder, self.dtype = folder, dtype

    def before_train(self, runner) -> None:
        from vitdense.extensions.features.features import start  # imported only when used

        self.cache = start(runner, self.folder, self.dtype)

    def after_train(self, runner) -> None:
        runner.logger.info(f"the trunk ran for {self.cache.computed} images; maps of {self.cache.read} were read")
