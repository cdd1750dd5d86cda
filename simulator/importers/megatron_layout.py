"""How Megatron cuts layers into pipeline stages: virtual stages, uneven ends, and its layout strings.

    "Ettt|(tt|)*29,m|L"    E embedding, t decoder layer, m prediction module, L loss; x*n and (...)*n repeat, | ends a stage

Stage k lies on pipeline rank k mod p, which is where our loop placement puts chunk k.
"""

from __future__ import annotations

from simulator.importers.settings import Entry, Settings, whole_of, word_of
from simulator.importers.vocabulary.words import stages_of

__all__ = ["read_layout"]


def read_layout(settings: Settings) -> None:
    """Put chunks_per_rank, layer_split, schedule and p2p.

    Raises:
        SpecError: a number that is none.
    """
    stages = settings.get("plan.pipeline_parallel", 1)
    layers = settings.get("model.layers")
    chunks = settings.put_whole(
        "plan.chunks_per_rank", "num_virtual_stages_per_pipeline_rank", "virtual_pipeline_model_parallel_size"
    )
    each = settings.take("num_layers_per_virtual_pipeline_stage")
    if each is not None:
        per_chunk = whole_of(each)
        if layers and layers % (stages * per_chunk) == 0:
            chunks = layers // (stages * per_chunk)
            settings.put("plan.chunks_per_rank", each, chunks)
        else:
            settings.refuse(each, "layers / (pipeline stages x these) is no whole number, or the layers are not said")
    layout = settings.take("pipeline_model_parallel_layout")
    if layout is not None:
        chunks = _layout(settings, layout, stages, layers)
    else:
        _ends(settings, stages * (chunks or 1), layers)
    if stages > 1 and not settings.get("plan.schedule"):
        interleaved = (chunks or 1) > 1
        settings.assume(
            "plan.schedule",
            "interleaved_1f1b" if interleaved else "one_f_one_b",
            "what Megatron runs with these stages",
        )
    waits = settings.flag("no_overlap_p2p_communication") or settings.flag("overlap_p2p_comm") is False
    if waits and stages > 1 and (chunks or 1) > 1:
        settings.say("plan.p2p", "blocking", "no_overlap_p2p_communication")


def _layout(settings: Settings, entry: Entry, ranks: int, layers: int | None) -> int | None:
    found = stages_of(word_of(entry))
    if found is None or len(found) % ranks:
        settings.refuse(entry, f"expected stages of E, t, m, L, as many as a multiple of {ranks}")
        return None
    split = [stage.count("t") for stage in found]
    if layers and sum(split) != layers:
        settings.refuse(entry, f"its stages have {sum(split)} layers, but the model has {layers}")
        return None
    chunks = len(found) // ranks
    if chunks > 1:
        settings.put("plan.chunks_per_rank", entry, chunks)
    if ranks > 1:
        settings.put("plan.layer_split", entry, split)
    return chunks


def _ends(settings: Settings, chunks: int, layers: int | None) -> None:
    """First and last stages with layers of their own, or with an embedding and a loss that count as one."""
    first = settings.take("decoder_first_pipeline_num_layers", "num_layers_in_first_pipeline_stage")
    last = settings.take("decoder_last_pipeline_num_layers", "num_layers_in_last_pipeline_stage")
    embedding, loss = (
        settings.flag("account_for_embedding_in_pipeline_split"),
        settings.flag("account_for_loss_in_pipeline_split"),
    )
    entries = [entry for entry in (first, last) if entry is not None]
    if not (entries or embedding or loss) or chunks < 2:
        return
    split: list[int] | None = None
    if layers:
        if entries:
            ends = [whole_of(entry, 0) if entry is not None else None for entry in (first, last)]
            inner = layers - sum(end or 0 for end in ends)
            middle = chunks - sum(end is not None for end in ends)
            if middle > 0 and inner >= 0 and inner % middle == 0:
                body = [inner // middle] * middle
                split = [
                    *([ends[0]] if ends[0] is not None else []),
                    *body,
                    *([ends[1]] if ends[1] is not None else []),
                ]
        elif (layers + bool(embedding) + bool(loss)) % chunks == 0:
            split = [(layers + bool(embedding) + bool(loss)) // chunks] * chunks
            split[0] -= bool(embedding)
            split[-1] -= bool(loss)
    if split is None or min(split) < 0:
        for entry in entries:
            settings.refuse(entry, "the layers between do not divide by the stages between")
        return
    why = entries[0].text if entries else "account_for_embedding_in_pipeline_split"
    settings.findings.put("plan.layer_split", split, why)
