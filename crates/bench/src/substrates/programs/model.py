"""A model in a .safetensors file. For each token the weights of all layers are read, layer by layer. Operations are bytes."""

import json
import mmap
import struct
import zlib

import program

LAYERS = 32


def make(data, bytes):
    each = bytes // LAYERS
    offsets = [[layer * each, layer * each + each] for layer in range(LAYERS)]
    tensors = [{"dtype": "BF16", "shape": [each // 2], "data_offsets": place} for place in offsets]
    header = json.dumps({f"layers.{layer}.weight": tensor for layer, tensor in enumerate(tensors)}).encode()
    header += b" " * (-len(header) % 8)
    program.fill(f"{data}/model.safetensors", bytes, struct.pack("<Q", len(header)) + header)


def begin(data):
    with open(f"{data}/model.safetensors", "rb") as file:
        model = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    start = 8 + struct.unpack_from("<Q", model)[0]
    places = [tensor["data_offsets"] for tensor in json.loads(bytes(model[8:start])).values()]
    layers = [model[start + first : start + end] for first, end in places]

    def batch(number):
        layer = layers[number % LAYERS]
        return len(layer), zlib.adler32(layer)

    return batch


program.main(make, begin)
