#include <csetjmp>
#include <cstdio>
#include <cstdlib>

#include <jpeglib.h>

#include <lockstep/base/error.h>

#include "pictures/picture_encoder.h"

namespace lockstep::pictures {

namespace {

constexpr int kQuality = 90;

// As in jpeg_decoder.cpp: nothing with a destructor lives where longjmp passes.
struct EncoderState {
  EncoderState() = default;
  ~EncoderState() {
    jpeg_destroy_compress(&info);
    std::free(bytes);
  }
  EncoderState(const EncoderState&) = delete;

  jpeg_compress_struct info{};
  jpeg_error_mgr errors{};
  std::jmp_buf on_error{};
  unsigned char* bytes = nullptr;
  unsigned long size = 0;
  char message[JMSG_LENGTH_MAX] = "";
};

[[noreturn]] void leave_encoder(j_common_ptr info) {
  auto& state = *static_cast<EncoderState*>(info->client_data);
  info->err->format_message(info, state.message);
  std::longjmp(state.on_error, 1);
}

bool try_encode(EncoderState& state, const Picture& picture) {
  state.info.err = jpeg_std_error(&state.errors);
  state.info.client_data = &state;
  state.errors.error_exit = leave_encoder;
  if (setjmp(state.on_error) != 0) {
    return false;
  }
  jpeg_create_compress(&state.info);
  jpeg_mem_dest(&state.info, &state.bytes, &state.size);
  state.info.image_width = static_cast<JDIMENSION>(picture.size.width);
  state.info.image_height = static_cast<JDIMENSION>(picture.size.height);
  state.info.input_components = 3;
  state.info.in_color_space = JCS_RGB;
  jpeg_set_defaults(&state.info);
  jpeg_set_quality(&state.info, kQuality, TRUE);
  jpeg_start_compress(&state.info, TRUE);
  for (int64_t y = 0; y < picture.size.height; ++y) {
    JSAMPROW row = const_cast<JSAMPROW>(picture.rgb.data() + y * picture.size.width * 3);
    jpeg_write_scanlines(&state.info, &row, 1);
  }
  jpeg_finish_compress(&state.info);
  return true;
}

}  // namespace

std::string encode_jpeg(const Picture& picture) {
  LOCKSTEP_CHECK(std::ssize(picture.rgb) == picture.size.width * picture.size.height * 3,
                 "{} bytes of {} x {}", picture.rgb.size(), picture.size.width,
                 picture.size.height);
  EncoderState state;
  if (!try_encode(state, picture)) {
    throw UsageError("cannot write a JPEG of {} x {} pixels: {}", picture.size.width,
                     picture.size.height, state.message);
  }
  return {reinterpret_cast<const char*>(state.bytes), state.size};
}

}  // namespace lockstep::pictures
