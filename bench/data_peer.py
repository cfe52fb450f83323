"""The peer of `lockstep bench data`: a DataLoader over an ImageFolder with torchvision's transforms.

    python data_peer.py FOLDER WORKERS BATCH_SIZE

Says `ready` once torch and torchvision are imported and the workers have read the folder once, or `absent` where one
of them is missing. Then, for each line on its input, it reads all pictures in a random order and answers with the
seconds and the number of pictures. Ends with its input.
"""
import sys
import time

try:
    import torch
    from torchvision import datasets, transforms
except ImportError:
    print("absent", flush=True)
    sys.exit(0)


def read_all(loader):
    return sum(len(target) for _, target in loader)


def main():
    torch.set_num_threads(1)
    workers = int(sys.argv[2])
    data = datasets.ImageFolder(sys.argv[1], transforms.Compose([
        transforms.RandomResizedCrop(224),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    ]))
    loader = torch.utils.data.DataLoader(data, batch_size=int(sys.argv[3]), shuffle=True, num_workers=workers,
                                         persistent_workers=workers > 0)
    read_all(loader)
    print("ready", flush=True)
    while sys.stdin.readline():
        begin = time.monotonic()
        count = read_all(loader)
        print(time.monotonic() - begin, count, flush=True)


if __name__ == "__main__":
    main()
