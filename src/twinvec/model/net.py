"""Backbone, pooling and heads as one torch module: token rows in, vectors out."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from twinvec.errors import UsageError
from twinvec.model.backbone import position_offset
from twinvec.model.batch import PackedBatch, chunks, padded
from twinvec.model.heads import Dense, unit_rows
from twinvec.model.linear import weights_may_change
from twinvec.model.packed import packed_forward
from twinvec.model.pooling import pool

PADDED_BUDGET = 1024  # tokens of a padded batch; measured: 4,096 loses a third of the rate on a CPU
PACKED_BUDGET = 2048  # tokens of a packed chunk; measured with benchmarks/encode.py


class Net(nn.Module):
    """`forward(rows) -> (B, D)`, in the order of the rows, whatever way they travel inside."""

    def __init__(
        self, backbone: nn.Module, pooling: Sequence[str], heads: Sequence[Dense], *, normalize: bool, include_prompt: bool = True, pad_id: int = 0
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.heads = nn.ModuleList(heads)
        self.pooling, self.normalize, self.include_prompt, self.pad_id = tuple(pooling), normalize, include_prompt, pad_id
        self._checkpointing = False
        self.packed = packed_forward(backbone)
        self.calibration: Sequence[Sequence[int]] | None = None  # token rows that an 8-bit forward was calibrated on
        self._leaks: bool | None = None  # does padding change a row? Found out at the first batch that has any

    @property
    def token_dimensions(self) -> int:
        config: Any = self.backbone.config
        return int(getattr(config, "hidden_size", None) or config.dim)

    @property
    def dimensions(self) -> int:
        if len(self.heads):
            last: Any = self.heads[-1]
            return int(last.linear.out_features)
        return self.token_dimensions * len(self.pooling)

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def set_dropout(self, share: float) -> None:
        """Set every dropout of the backbone, in its modules and in its configuration."""
        config: Any = self.backbone.config
        for name in ("hidden_dropout_prob", "attention_probs_dropout_prob", "dropout", "attention_dropout", "embedding_dropout", "mlp_dropout"):
            if hasattr(config, name):
                setattr(config, name, share)
        adapters = {id(found) for name, found in self.backbone.named_modules() if ".lora_dropout." in name}  # an option of their own
        for module in self.backbone.modules():
            if isinstance(module, nn.Dropout):
                if id(module) not in adapters:
                    module.p = share
            elif isinstance(getattr(module, "attention_dropout", None), float):
                module.attention_dropout = share  # type: ignore[assignment]
        self.rebuild()  # the packed forward keeps the shares that it was built with

    def rebuild(self) -> None:
        """Make the packed forward anew, after modules of the backbone were exchanged (adapters put on or taken off)."""
        self.packed = packed_forward(self.backbone)
        if self.calibration is not None:
            from twinvec.model.quantized import quantize

            quantize(self, self.calibration)
        self.set_checkpointing(self._checkpointing)

    def set_checkpointing(self, on: bool) -> None:
        """Gradient checkpointing (Chen et al. 2016): keep each layer's input only, and compute the layer a second time in the backward pass.

        Memory by layers instead of by operations, for a third more time. Dropout falls the same both times. UsageError where the backbone has none.
        """
        self._checkpointing = on
        if self.packed is not None:
            self.packed.checkpointing = on
            return
        # The flags that transformers' own switch sets; the switch itself changes its name within one major version.
        modules: list[Any] = [module for module in self.backbone.modules() if hasattr(module, "gradient_checkpointing")]
        if on and not (modules and getattr(self.backbone, "supports_gradient_checkpointing", False)):
            config: Any = self.backbone.config
            self._checkpointing = False
            raise UsageError(f"gradient checkpointing: a backbone of the kind {config.model_type!r} has none; train without it")
        for module in modules:
            module._gradient_checkpointing_func = partial(checkpoint, use_reentrant=False)
            module.gradient_checkpointing = on

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "packed": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self.rebuild()  # a copy's packed forward reads the copy's weights

    def drops(self) -> bool:
        """True when some dropout is on in training, so that one text gives another vector each time."""
        for module in self.modules():
            if isinstance(module, nn.Dropout) and module.p > 0:
                return True
            if any(isinstance(getattr(module, name, None), float) and getattr(module, name) > 0 for name in ("attention_dropout", "dropout_p")):
                return True
        return False

    def train(self, mode: bool = True) -> Net:
        """As torch's; entering training makes inference look at the weights afresh afterwards."""
        if mode:
            weights_may_change()
        super().train(mode)
        return self

    def forward(self, rows: Sequence[Sequence[int]], skip: int = 0, *, normalize: bool | None = None) -> Tensor:
        """rows: B token rows; skip: first tokens of each row that pooling leaves out (only if the model says so); returns (B, D).

        normalize: overrides the model's own Normalize head, for losses that want the lengths.
        """
        skip = 0 if self.include_prompt else skip
        pooled = self._pool_packed(rows, skip) if self.packed is not None else self._pool_padded(rows, skip)
        for head in self.heads:
            pooled = head(pooled.to(next(head.parameters()).dtype))
        return unit_rows(pooled) if (self.normalize if normalize is None else normalize) else pooled

    def _pool_packed(self, rows: Sequence[Sequence[int]], skip: int) -> Tensor:
        batch = PackedBatch.of(rows, self.device)
        if not batch.groups:
            return torch.zeros(len(rows), self.token_dimensions * len(self.pooling), device=self.device)
        assert self.packed is not None
        tokens = self.packed(batch)
        parts = []
        for group in batch.groups:
            view = tokens[group.start : group.stop].view(group.rows, group.length, -1)
            parts.append(pool(view, torch.ones(group.rows, group.length, dtype=torch.bool, device=view.device), self.pooling, skip))
        if batch.empty_rows:
            parts.insert(0, torch.zeros(batch.empty_rows, parts[0].shape[1], dtype=parts[0].dtype, device=parts[0].device))
        back = torch.empty(len(rows), dtype=torch.long)
        back[torch.tensor(batch.order)] = torch.arange(len(rows))
        return torch.cat(parts)[back.to(tokens.device)]

    def _pool_padded(self, rows: Sequence[Sequence[int]], skip: int, *, left: bool = False) -> Tensor:
        if len({len(row) for row in rows}) > 1 and self._padding_leaks(rows):
            return self._pool_by_length(rows, skip)
        tokens, mask = self._run_padded(rows, left)
        return pool(tokens, mask, self.pooling, skip)

    def _run_padded(self, rows: Sequence[Sequence[int]], left: bool) -> tuple[Tensor, Tensor]:
        """Token vectors (B, L, D) and the mask (B, L) of real tokens."""
        ids, mask = padded(rows, self.pad_id, self.device, left=left)
        # A row without tokens would attend to nothing (softmax over no key is NaN); it looks at one padding token, and pools to zeros.
        seen = mask.clone()
        seen[:, -1 if left else 0] |= ~mask.any(1)
        arguments: dict[str, Any] = {"input_ids": ids, "attention_mask": seen.long()}
        config: Any = self.backbone.config
        if hasattr(config, "use_cache"):
            arguments["use_cache"] = False
        if left:
            arguments["position_ids"] = (seen.long().cumsum(1) - 1).clamp(min=0) + position_offset(self.backbone)
        tokens: Tensor = self.backbone(**arguments).last_hidden_state
        return tokens, mask

    def _padding_leaks(self, rows: Sequence[Sequence[int]]) -> bool:
        """True for backbones in which padding changes the tokens beside it, mask or not (ConvBERT's convolutions, MobileBERT's trigrams)."""
        if self._leaks is None:
            short, long = min((row for row in rows if row), key=len, default=[]), max(rows, key=len)
            if len(short) == len(long):
                return False  # nothing to be seen in this batch
            was_training = self.backbone.training
            self.backbone.eval()
            try:
                with torch.no_grad():
                    alone = self._run_padded([short], False)[0][0].float()
                    beside = self._run_padded([short, long], False)[0][0, : len(short)].float()
            finally:
                self.backbone.train(was_training)
            tolerance = 1e-3 if next(self.parameters()).dtype == torch.float32 else 5e-2
            self._leaks = bool((alone - beside).abs().max() > tolerance * alone.abs().max())
        return self._leaks

    def _pool_by_length(self, rows: Sequence[Sequence[int]], skip: int) -> Tensor:
        """One pass for each length, so that no row is padded."""
        lengths = sorted({len(row) for row in rows})
        members = [[i for i, row in enumerate(rows) if len(row) == length] for length in lengths]
        pooled = torch.cat([self._pool_padded([rows[i] for i in group], skip) for group in members])
        back = torch.empty(len(rows), dtype=torch.long)
        back[torch.tensor([i for group in members for i in group])] = torch.arange(len(rows))
        return pooled[back.to(pooled.device)]

    def chunked(self, lengths: Sequence[int], budget: int | None) -> list[list[int]]:
        """Row numbers in chunks that fit one forward pass, longest first."""
        pad = self.packed is None
        return list(chunks(lengths, budget or (PADDED_BUDGET if pad else PACKED_BUDGET), pad=pad))
