#include "pictures/picture_files.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <random>
#include <vector>

#include <fmt/format.h>
#include <jpeglib.h>
#include <png.h>

#include "base/unique_fd.h"

namespace lockstep::test {

namespace {

constexpr int kQuality = 92;

int gray_of(Rgb colour) {
  return (colour.red * 299 + colour.green * 587 + colour.blue * 114 + 500) / 1000;
}

void append(std::vector<uint8_t>& row, std::initializer_list<int> values) {
  for (const int value : values) {
    row.push_back(static_cast<uint8_t>(value));
  }
}

std::vector<uint8_t> jpeg_row(const PictureOptions& picture, JpegKind kind, int y) {
  std::vector<uint8_t> row;
  for (int x = 0; x < picture.width; ++x) {
    const Rgb colour = picture.colour(x, y);
    if (kind == JpegKind::Gray) {
      append(row, {gray_of(colour)});
    } else if (kind == JpegKind::Cmyk) {  // as Adobe's programs: the complement, and no black
      append(row, {colour.red, colour.green, colour.blue, 255});
    } else {
      append(row, {colour.red, colour.green, colour.blue});
    }
  }
  return row;
}

std::vector<uint8_t> png_row(const PictureOptions& picture, PngKind kind, int y) {
  std::vector<uint8_t> row;
  for (int x = 0; x < picture.width; ++x) {
    const Rgb colour = picture.colour(x, y);
    if (kind == PngKind::Gray) {
      append(row, {gray_of(colour)});
    } else if (kind == PngKind::Rgba) {
      append(row, {colour.red, colour.green, colour.blue, x % 256});
    } else if (kind == PngKind::Rgb16) {
      append(row, {colour.red, 0x40, colour.green, 0x40, colour.blue, 0x40});
    } else {
      append(row, {colour.red, colour.green, colour.blue});
    }
  }
  return row;
}

}  // namespace

PictureOptions gradient(int width, int height) {
  return {.width = width, .height = height, .colour = [=](int x, int y) {
            return Rgb{x * 255 / std::max(width - 1, 1), y * 255 / std::max(height - 1, 1),
                       255 - x * 255 / std::max(width - 1, 1)};
          }};
}

std::string jpeg_bytes(const PictureOptions& picture, JpegKind kind) {
  jpeg_compress_struct info{};
  jpeg_error_mgr errors{};
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  unsigned char* buffer = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&info, &buffer, &size);
  info.image_width = static_cast<JDIMENSION>(picture.width);
  info.image_height = static_cast<JDIMENSION>(picture.height);
  info.input_components = kind == JpegKind::Gray ? 1 : kind == JpegKind::Cmyk ? 4 : 3;
  info.in_color_space = kind == JpegKind::Gray   ? JCS_GRAYSCALE
                        : kind == JpegKind::Cmyk ? JCS_CMYK
                                                 : JCS_RGB;
  jpeg_set_defaults(&info);
  jpeg_set_quality(&info, kQuality, TRUE);
  if (kind == JpegKind::Progressive) {
    jpeg_simple_progression(&info);
  }
  jpeg_start_compress(&info, TRUE);
  for (int y = 0; y < picture.height; ++y) {
    std::vector<uint8_t> row = jpeg_row(picture, kind, y);
    JSAMPROW pointer = row.data();
    jpeg_write_scanlines(&info, &pointer, 1);
  }
  jpeg_finish_compress(&info);
  std::string bytes(reinterpret_cast<const char*>(buffer), size);
  jpeg_destroy_compress(&info);
  std::free(buffer);
  return bytes;
}

std::string png_bytes(const PictureOptions& picture, PngKind kind) {
  png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, nullptr, nullptr, nullptr);
  png_infop info = png_create_info_struct(png);
  std::string bytes;
  png_set_write_fn(
      png, &bytes,
      [](png_structp to, png_bytep data, size_t size) {
        static_cast<std::string*>(png_get_io_ptr(to))->append(reinterpret_cast<char*>(data), size);
      },
      nullptr);
  const int colours = kind == PngKind::Gray   ? PNG_COLOR_TYPE_GRAY
                      : kind == PngKind::Rgba ? PNG_COLOR_TYPE_RGB_ALPHA
                                              : PNG_COLOR_TYPE_RGB;
  png_set_IHDR(png, info, static_cast<png_uint_32>(picture.width),
               static_cast<png_uint_32>(picture.height), kind == PngKind::Rgb16 ? 16 : 8, colours,
               kind == PngKind::Interlaced ? PNG_INTERLACE_ADAM7 : PNG_INTERLACE_NONE,
               PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
  png_write_info(png, info);
  std::vector<std::vector<uint8_t>> rows;
  std::vector<png_bytep> pointers;
  for (int y = 0; y < picture.height; ++y) {
    rows.push_back(png_row(picture, kind, y));
    pointers.push_back(rows.back().data());
  }
  png_write_image(png, pointers.data());
  png_write_end(png, info);
  png_destroy_write_struct(&png, &info);
  return bytes;
}

void write_noisy_pictures(const std::string& folder, const NoisyPictures& pictures) {
  std::mt19937 dice(pictures.seed);
  std::filesystem::create_directories(folder);
  const auto noisy = [&](int value) { return value + static_cast<int>(dice() % 80); };
  const Rgb colour = pictures.colour;
  const PictureOptions picture{
      .width = 48, .height = 40, .colour = [&](int, int) {
        return Rgb{noisy(colour.red), noisy(colour.green), noisy(colour.blue)};
      }};
  for (int i = 0; i < pictures.num; ++i) {
    const bool is_png = i % 4 == 0;
    const std::string bytes = is_png ? png_bytes(picture) : jpeg_bytes(picture);
    const base::UniqueFd fd = base::open_file(
        fmt::format("{}/{}.{}", folder, i, is_png ? "png" : "jpg"), O_WRONLY | O_CREAT);
    base::write_all(fd.get(), bytes.data(), bytes.size());
  }
}

}  // namespace lockstep::test
