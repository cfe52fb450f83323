#include <csetjmp>
#include <cstdio>
#include <cstring>

#include <png.h>

#include <lockstep/base/error.h>

#include "pictures/picture_decoder.h"

namespace lockstep::pictures {

namespace {

constexpr png_alloc_size_t kMaxChunkBytes = 8u << 20;
constexpr png_uint_32 kMaxChunks = 256;  // of texts and the like

// libpng leaves by longjmp, which runs no destructors: the functions below that call it hold
// nothing that has one, and return false after an error.
struct PngState {
  PngState() = default;
  ~PngState() { png_destroy_read_struct(&png, &info, nullptr); }
  PngState(const PngState&) = delete;

  png_structp png = nullptr;
  png_infop info = nullptr;
  const png_byte* next = nullptr;
  size_t bytes_left = 0;
  char message[128] = "it cannot be read";
};

[[noreturn]] void leave(png_structp png, png_const_charp message) {
  auto& state = *static_cast<PngState*>(png_get_error_ptr(png));
  std::snprintf(state.message, sizeof state.message, "%s", message);
  png_longjmp(png, 1);
}

void ignore(png_structp /*png*/, png_const_charp /*message*/) {}

void take_bytes(png_structp png, png_bytep bytes, size_t size) {
  auto& state = *static_cast<PngState*>(png_get_io_ptr(png));
  if (size > state.bytes_left) {
    png_error(png, "it is truncated");
  }
  std::memcpy(bytes, state.next, size);
  state.next += size;
  state.bytes_left -= size;
}

bool try_open(PngState& state) {
  state.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &state, leave, ignore);
  if (state.png == nullptr || setjmp(png_jmpbuf(state.png)) != 0) {
    return false;
  }
  state.info = png_create_info_struct(state.png);
  png_set_user_limits(state.png, kMaxPictureSide, kMaxPictureSide);
  png_set_chunk_malloc_max(state.png, kMaxChunkBytes);
  png_set_chunk_cache_max(state.png, kMaxChunks);
  png_set_read_fn(state.png, &state, take_bytes);
  png_read_info(state.png, state.info);
  return true;
}

// Whatever the file holds, rows of three bytes a pixel come out; transparency is left out.
bool try_read(PngState& state, png_bytep* rows, size_t row_bytes) {
  if (setjmp(png_jmpbuf(state.png)) != 0) {
    return false;
  }
  png_set_expand(state.png);
  png_set_scale_16(state.png);
  png_set_gray_to_rgb(state.png);
  png_set_strip_alpha(state.png);
  png_set_interlace_handling(state.png);
  png_read_update_info(state.png, state.info);
  if (png_get_rowbytes(state.png, state.info) != row_bytes) {
    png_error(state.png, "its kind of pixel is not known");
  }
  png_read_image(state.png, rows);
  png_read_end(state.png, nullptr);
  return true;
}

class PngDecoder : public PictureDecoder {
 public:
  PngDecoder(std::span<const std::byte> bytes, const std::string& name) : name_(name) {
    state_.next = reinterpret_cast<const png_byte*>(bytes.data());
    state_.bytes_left = bytes.size();
    if (!try_open(state_)) {
      fail();
    }
  }

  PictureSize size() const override {
    return {png_get_image_width(state_.png, state_.info),
            png_get_image_height(state_.png, state_.info)};
  }

  // All of it: rows depend on those above them.
  void decode(const PictureWish& wish, Picture& picture) override {
    picture.size = size();
    picture.box = wish.box;
    const auto row_bytes = static_cast<size_t>(picture.size.width) * 3;
    picture.rgb.resize(row_bytes * static_cast<size_t>(picture.size.height));
    std::vector<png_bytep> rows;
    for (int64_t y = 0; y < picture.size.height; ++y) {
      rows.push_back(picture.rgb.data() + static_cast<size_t>(y) * row_bytes);
    }
    if (!try_read(state_, rows.data(), row_bytes)) {
      fail();
    }
  }

 private:
  [[noreturn]] void fail() const { throw FormatError("{}: PNG: {}", name_, state_.message); }

  const std::string& name_;
  PngState state_;
};

}  // namespace

std::unique_ptr<PictureDecoder> open_png(std::span<const std::byte> bytes,
                                         const std::string& name) {
  auto decoder = std::make_unique<PngDecoder>(bytes, name);
  check_picture_size(decoder->size(), name);
  return decoder;
}

}  // namespace lockstep::pictures
