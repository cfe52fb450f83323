#include <algorithm>

#include "cuda/column_tile.cuh"

namespace lockstep::cuda {

TileGrid tile_grid(int64_t rows, int64_t columns, int per_vector, int blocks_wanted) {
  const int64_t vectors = ceil_div(columns, per_vector);
  TileGrid grid;
  grid.vectors = static_cast<int>(std::clamp<int64_t>(vectors, 1, kTileVectors));
  grid.rows = kTileThreads / grid.vectors;
  const int64_t tiles = std::max<int64_t>(ceil_div(vectors, grid.vectors), 1);
  const int64_t most = std::clamp<int64_t>(ceil_div(rows, grid.rows), 1, kMaxParts);
  const int64_t parts = std::clamp<int64_t>(blocks_wanted / tiles, 1, most);
  grid.blocks = dim3(static_cast<unsigned>(tiles), static_cast<unsigned>(parts));
  return grid;
}

}  // namespace lockstep::cuda
