#include <algorithm>
#include <cmath>
#include <csetjmp>
#include <cstdio>
#include <tuple>

#include <jpeglib.h>
// After jpeglib.h, which does not include it.
#include <jerror.h>

#include <lockstep/base/error.h>

#include "pictures/picture_decoder.h"

namespace lockstep::pictures {

namespace {

constexpr int kMaxScans = 500;  // a progressive file of a few bytes can ask for very many
constexpr long kMaxWorkBytes = 1L << 30;
constexpr double kMargin = 3;  // pixels around the box: upsampling of colours is wrong at an edge

// Part of a decoded picture, in its pixels.
struct Region {
  JDIMENSION left = 0;
  JDIMENSION top = 0;
  JDIMENSION width = 0;
  JDIMENSION height = 0;
};

// libjpeg leaves by longjmp, which runs no destructors: the functions below that call it hold
// nothing that has one, and return false after an error.
struct JpegState {
  JpegState() = default;
  ~JpegState() { jpeg_destroy_decompress(&info); }
  JpegState(const JpegState&) = delete;

  jpeg_decompress_struct info{};
  jpeg_error_mgr errors{};
  jpeg_progress_mgr progress{};
  std::jmp_buf on_error{};
  char message[JMSG_LENGTH_MAX] = "";
};

JpegState& state_of(j_common_ptr info) {
  return *static_cast<JpegState*>(info->client_data);
}

[[noreturn]] void leave(j_common_ptr info) {
  JpegState& state = state_of(info);
  info->err->format_message(info, state.message);
  std::longjmp(state.on_error, 1);
}

// Whether a warning of libjpeg means that data is lost.
bool is_loss(int code) {
  return code == JWRN_JPEG_EOF || code == JWRN_HIT_MARKER || code == JWRN_HUFF_BAD_CODE ||
         code == JWRN_ARITH_BAD_CODE || code == JWRN_MUST_RESYNC;
}

void take_message(j_common_ptr info, int level) {
  if (level < 0 && is_loss(info->err->msg_code)) {
    leave(info);
  }
}

void watch_scans(j_common_ptr info) {
  if (reinterpret_cast<j_decompress_ptr>(info)->input_scan_number > kMaxScans) {
    JpegState& state = state_of(info);
    std::snprintf(state.message, sizeof state.message, "it has more than %d scans", kMaxScans);
    std::longjmp(state.on_error, 1);
  }
}

bool try_open(JpegState& state, const unsigned char* bytes, unsigned long size) {
  state.info.err = jpeg_std_error(&state.errors);
  state.info.client_data = &state;
  state.errors.error_exit = leave;
  state.errors.emit_message = take_message;
  if (setjmp(state.on_error) != 0) {
    return false;
  }
  jpeg_create_decompress(&state.info);  // leaves client_data as it is
  state.info.mem->max_memory_to_use = kMaxWorkBytes;
  state.progress.progress_monitor = watch_scans;
  state.info.progress = &state.progress;
  jpeg_mem_src(&state.info, bytes, size);
  jpeg_read_header(&state.info, TRUE);
  return true;
}

// `region` comes back as libjpeg can do it: it begins further left, at a block's edge.
bool try_start(JpegState& state, Region& region) {
  if (setjmp(state.on_error) != 0) {
    return false;
  }
  jpeg_start_decompress(&state.info);
  jpeg_crop_scanline(&state.info, &region.left, &region.width);
  if (region.top > 0) {
    jpeg_skip_scanlines(&state.info, region.top);
  }
  return true;
}

bool try_read_rows(JpegState& state, unsigned char* rows, size_t row_bytes, JDIMENSION count) {
  if (setjmp(state.on_error) != 0) {
    return false;
  }
  for (JDIMENSION i = 0; i < count; ++i) {
    JSAMPROW row = rows + i * row_bytes;
    jpeg_read_scanlines(&state.info, &row, 1);
  }
  jpeg_abort_decompress(&state.info);  // the rows below are nobody's
  return true;
}

// Inks to light. Adobe's programs write the complement.
void convert_inks(const std::vector<uint8_t>& inks, bool is_adobe, std::vector<uint8_t>& rgb) {
  rgb.resize(inks.size() / 4 * 3);
  const int flip = is_adobe ? 0 : 255;
  for (size_t pixel = 0; pixel < inks.size() / 4; ++pixel) {
    const int black = inks[pixel * 4 + 3] ^ flip;
    for (size_t c = 0; c < 3; ++c) {
      rgb[pixel * 3 + c] = static_cast<uint8_t>((inks[pixel * 4 + c] ^ flip) * black / 255);
    }
  }
}

class JpegDecoder : public PictureDecoder {
 public:
  JpegDecoder(std::span<const std::byte> bytes, const std::string& name) : name_(name) {
    if (!try_open(state_, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size())) {
      fail();
    }
    check_end();
  }

  PictureSize size() const override { return {state_.info.image_width, state_.info.image_height}; }

  void decode(const PictureWish& wish, Picture& picture) override {
    const unsigned eighths = scale_for(wish);
    const bool has_inks =
        state_.info.jpeg_color_space == JCS_CMYK || state_.info.jpeg_color_space == JCS_YCCK;
    state_.info.scale_num = eighths;
    state_.info.scale_denom = 8;
    state_.info.out_color_space = has_inks ? JCS_CMYK : JCS_RGB;
    const double scale = eighths / 8.0;
    const PictureBox box{wish.box.left * scale, wish.box.top * scale, wish.box.width * scale,
                         wish.box.height * scale};
    Region region = region_around(box, wish.size, eighths);
    if (!try_start(state_, region)) {
      fail();
    }
    const size_t row_bytes = size_t{region.width} * (has_inks ? 4 : 3);
    std::vector<uint8_t> inks;
    std::vector<uint8_t>& rows = has_inks ? inks : picture.rgb;
    rows.resize(row_bytes * region.height);
    if (!try_read_rows(state_, rows.data(), row_bytes, region.height)) {
      fail();
    }
    if (has_inks) {
      convert_inks(inks, state_.info.saw_Adobe_marker != 0, picture.rgb);
    }
    picture.size = {region.width, region.height};
    picture.box = {box.left - region.left, box.top - region.top, box.width, box.height};
  }

 private:
  [[noreturn]] void fail() const { throw FormatError("{}: JPEG: {}", name_, state_.message); }

  // An end mark must follow the picture, since rows at its end are often not read at all. In the
  // coded data themselves it cannot occur.
  void check_end() const {
    const unsigned char* data = state_.info.src->next_input_byte;
    for (size_t i = state_.info.src->bytes_in_buffer; i >= 2; --i) {
      if (data[i - 2] == 0xff && data[i - 1] == JPEG_EOI) {
        return;
      }
    }
    throw FormatError("{}: JPEG: it has no end mark; it is truncated", name_);
  }

  static unsigned scale_for(const PictureWish& wish) {
    for (const unsigned eighths : {1u, 2u, 4u}) {  // those that libjpeg-turbo has fast code for
      if (wish.box.width * eighths >= 8.0 * static_cast<double>(wish.size.width) &&
          wish.box.height * eighths >= 8.0 * static_cast<double>(wish.size.height)) {
        return eighths;
      }
    }
    return 8;
  }

  // The pixels that the resize reads.
  Region region_around(const PictureBox& box, PictureSize wanted, unsigned eighths) const {
    const auto scaled = [&](JDIMENSION side) { return (side * eighths + 7) / 8; };
    const auto edges = [](double begin, double length, int64_t pixels, JDIMENSION side) {
      const double margin = std::max(length / static_cast<double>(pixels), 1.0) + kMargin;
      const double first = std::clamp(std::floor(begin - margin), 0.0, side - 1.0);
      const double last = std::clamp(std::ceil(begin + length + margin), first + 1, side + 0.0);
      return std::pair(static_cast<JDIMENSION>(first), static_cast<JDIMENSION>(last - first));
    };
    Region region;
    std::tie(region.left, region.width) =
        edges(box.left, box.width, wanted.width, scaled(state_.info.image_width));
    std::tie(region.top, region.height) =
        edges(box.top, box.height, wanted.height, scaled(state_.info.image_height));
    return region;
  }

  const std::string& name_;
  JpegState state_;
};

}  // namespace

std::unique_ptr<PictureDecoder> open_jpeg(std::span<const std::byte> bytes,
                                          const std::string& name) {
  auto decoder = std::make_unique<JpegDecoder>(bytes, name);
  check_picture_size(decoder->size(), name);
  return decoder;
}

}  // namespace lockstep::pictures
