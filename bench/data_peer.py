"""The peer of `lockstep bench data`: a DataLoader over an ImageFolder with torchvision's transforms.

    python data_peer.py FOLDER WORKERS BATCH_SIZE

Says `ready` once torch and torchvision are imported and the workers have read the folder once, or `absent` where one
of them is missing. Then it answers each line on its input, and ends with its input:

    go         reads all pictures in a random order; the seconds and the number of pictures
    pixels N   the first N pictures as an evaluation sees them, without dice: `pixels COUNT`, and then COUNT float32
"""
import sys
import time

try:
    import torch
    from torchvision import datasets, transforms
except ImportError:
    print("absent", flush=True)
    sys.exit(0)


NORMALISED = [transforms.ToTensor(), transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))]


def read_all(loader):
    return sum(len(target) for _, target in loader)


def write_pixels(folder, count):
    data = datasets.ImageFolder(folder, transforms.Compose([transforms.Resize(256), transforms.CenterCrop(224),
                                                            *NORMALISED]))
    pixels = torch.stack([data[i][0] for i in range(count)])
    sys.stdout.buffer.write(f"pixels {pixels.numel()}\n".encode() + pixels.contiguous().numpy().tobytes())
    sys.stdout.buffer.flush()


def main():
    torch.set_num_threads(1)
    workers = int(sys.argv[2])
    data = datasets.ImageFolder(sys.argv[1], transforms.Compose([
        transforms.RandomResizedCrop(224),
        transforms.RandomHorizontalFlip(),
        *NORMALISED,
    ]))
    loader = torch.utils.data.DataLoader(data, batch_size=int(sys.argv[3]), shuffle=True, num_workers=workers,
                                         persistent_workers=workers > 0)
    read_all(loader)
    print("ready", flush=True)
    for line in sys.stdin:
        if line.startswith("pixels"):
            write_pixels(sys.argv[1], int(line.split()[1]))
            continue
        begin = time.monotonic()
        count = read_all(loader)
        print(time.monotonic() - begin, count, flush=True)


if __name__ == "__main__":
    main()
