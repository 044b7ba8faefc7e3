"""Machines whose figures NVIDIA has published: peak rates of dense products, and bandwidths in one direction.

Data sheets quote products at twice these rates (with structured sparsity, which nothing here has) and NVLink in both
directions at once.
"""

from dataclasses import dataclass

EFFICIENCY = 1 / 3
"""The share of the peak rate that products are taken to reach: what Newton–Schulz iterations reach on an H100, by
Appendix A of arXiv 2504.05295: 3.3e14 operations on a 53248×16384 matrix in about 1 s, where the peak is 989e12 / s."""

_H100 = "NVIDIA H100 Tensor Core GPU Architecture white paper, table 2; H100 data sheet (memory and NVLink)"
_H200 = "NVIDIA H200 Tensor Core GPU data sheet"
_A100 = "NVIDIA A100 80GB data sheet, nvidia-a100-datasheet-us-nvidia-1758950"
_B200 = "NVIDIA Blackwell architecture technical brief, HGX B200"
_DGX_A100 = "DGX A100 User Guide: eight ConnectX-6 of 200 Gbit/s"
_DGX = "https://docs.nvidia.com/dgx-basepod, core components: eight ConnectX-7 of 400 Gbit/s"


@dataclass(frozen=True)
class Machine:
    """A node of GPUs; rates and bandwidths are those of one GPU, in operations and bytes per second.

    Args:
        fp32, tf32, bf16: of dense products at their peak.
        memory: bandwidth of the GPU's memory.
        node: bandwidth to the other GPUs of the node, in one direction.
        network: bandwidth of the GPU's own network card, in one direction.
        gpus_per_node: that the node's network connects.
        sources: of the figures.

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
    sources: tuple[str, ...] = ()

    def rate(self, precision: str) -> float:
        """Of products at Dion's option ``precision``: "highest" is FP32, "high" TF32, "medium" BF16."""
        return {"highest": self.fp32, "high": self.tf32, "medium": self.bf16}[precision]

    def bandwidth(self, ranks_in_node: int, is_in_node: bool = False) -> float:
        """Of one rank of an axis that has so many ranks in a node, or all of them.

        A ring that leaves the node does so through the network cards of all its ranks there.
        """
        return self.node if is_in_node else min(self.node, ranks_in_node * self.network)


MACHINES = {
    "a100": Machine("A100 80GB SXM", 19.5e12, 156e12, 312e12, 2.039e12, 300e9, 25e9, sources=(_A100, _DGX_A100)),
    "h100": Machine("H100 SXM", 66.9e12, 494.7e12, 989.4e12, 3.35e12, 450e9, 50e9, sources=(_H100, _DGX)),
    "h200": Machine("H200 SXM", 66.9e12, 494.7e12, 989.4e12, 4.8e12, 450e9, 50e9, sources=(_H200, _DGX)),
    "b200": Machine("B200 SXM", 80e12, 1100e12, 2250e12, 8e12, 900e9, 50e9, sources=(_B200, _DGX)),
}
"""By the name that ``--machine`` takes."""
