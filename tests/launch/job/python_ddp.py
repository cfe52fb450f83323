"""A training as PyTorch's users write it for torchrun: nothing in it knows of lockstep."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)  # each begins elsewhere and reads other data: DDP must bring them together
    model = DistributedDataParallel(torch.nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.randn(16, 8)).square().mean().backward()
        optimizer.step()
    mine = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    of_ranks = [torch.empty_like(mine) for _ in range(world)]
    dist.all_gather(of_ranks, mine)
    assert all(torch.equal(mine, other) for other in of_ranks), of_ranks
    print(f"rank {rank} of {world} has the parameters of all", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
