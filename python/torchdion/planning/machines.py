"""Machines whose figures NVIDIA has published: peak rates of dense products, and bandwidths in one direction.

Data sheets quote products at twice these rates (with structured sparsity, which nothing here has) and NVLink in both
directions at once.
"""

from dataclasses import dataclass, field, replace

EFFICIENCY = 1 / 3
"""The share of the peak rate that products are taken to reach: what Newton–Schulz iterations reach on an H100, by
Appendix A of arXiv 2504.05295: 3.3e14 operations on a 53248×16384 matrix in about 1 s, where the peak is 989e12 / s."""


@dataclass(frozen=True)
class Machine:
    """A node of GPUs; rates and bandwidths are those of one GPU, in operations and bytes per second.

    Args:
        fp32, tf32, bf16: of dense products at their peak.
        memory: bandwidth of the GPU's memory.
        node: bandwidth to the other GPUs of the node, in one direction.
        network: bandwidth of the GPU's own network card, in one direction.
        gpus_per_node: that the node's network connects.
        sources: of each figure.

    Example:
        >>> from dataclasses import replace
        >>> slow = replace(MACHINES["h100"], name="H100 on 10 Gbit/s", network=10e9 / 8)
        >>> slow.bandwidth(ranks_in_node=1)
        1250000000.0
    """

    name: str
    fp32: float
    tf32: float
    bf16: float
    memory: float
    node: float
    network: float
    gpus_per_node: int = 8
    sources: dict[str, str] = field(default_factory=dict)

    def rate(self, precision: str) -> float:
        """Of products at Dion's option ``precision``: "highest" is FP32, "high" TF32, "medium" BF16."""
        return {"highest": self.fp32, "high": self.tf32, "medium": self.bf16}[precision]

    def bandwidth(self, ranks_in_node: int, is_in_node: bool = False) -> float:
        """Of one rank of an axis that has so many ranks in a node, or all of them.

        A ring that leaves the node does so through the network cards of all its ranks there.
        """
        return self.node if is_in_node else min(self.node, ranks_in_node * self.network)


_HOPPER = "https://resources.nvidia.com/en-us-tensor-core (H100 Tensor Core GPU Architecture, table 2, dense)"
_H100 = "https://www.nvidia.com/en-us/data-center/h100/ (H100 SXM)"
_H200 = "https://www.nvidia.com/en-us/data-center/h200/ (H200 SXM)"
_A100 = (
    "https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a100/pdf/"
    "nvidia-a100-datasheet-us-nvidia-1758950-r4-web.pdf"
)
_BLACKWELL = "https://resources.nvidia.com/en-us-blackwell-architecture (technical brief, HGX B200, dense)"
_DGX_A100 = "https://docs.nvidia.com/dgx/dgxa100-user-guide (eight ConnectX-6 of 200 Gbit/s)"
_DGX = "https://docs.nvidia.com/dgx-basepod (core components: eight ConnectX-7 of 400 Gbit/s)"


def _sources(rates: str, memory_and_node: str, network: str) -> dict[str, str]:
    return {
        **dict.fromkeys(("fp32", "tf32", "bf16"), rates),
        **dict.fromkeys(("memory", "node"), memory_and_node),
        "network": network,
    }


_H100_SXM = Machine(
    name="H100 SXM",
    fp32=66.9e12,
    tf32=494.7e12,
    bf16=989.4e12,
    memory=3.35e12,
    node=450e9,
    network=50e9,
    sources=_sources(_HOPPER, _H100, _DGX),
)

MACHINES = {
    "a100": Machine(
        name="A100 80GB SXM",
        fp32=19.5e12,
        tf32=156e12,
        bf16=312e12,
        memory=2.039e12,
        node=300e9,
        network=25e9,
        sources=_sources(_A100, _A100, _DGX_A100),
    ),
    "h100": _H100_SXM,
    "h200": replace(_H100_SXM, name="H200 SXM", memory=4.8e12, sources=_sources(_HOPPER, _H200, _DGX)),
    "b200": Machine(
        name="B200 SXM",
        fp32=80e12,
        tf32=1100e12,
        bf16=2250e12,
        memory=8e12,
        node=900e9,
        network=50e9,
        sources=_sources(_BLACKWELL, _BLACKWELL, _DGX),
    ),
}
"""By the name that ``--machine`` takes. The H200's rates are the H100's: the same chip with more memory."""
