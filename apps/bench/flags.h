#pragma once

// The flags of `lockstep bench`: typed by CLI11, which converts and checks every value.

#include <cstdint>

#include <CLI/CLI.hpp>

namespace lockstep::app {

// Takes a number, which may have a decimal point, and a unit: B or none; K, M, G or KiB, MiB,
// GiB, which are powers of 1024; kB, MB, GB, which are powers of 1000. These are the units of
// dd(1). CLI11's own AsSizeValue has one meaning for K and KB and knows no decimal point. The
// value becomes a number of bytes in [min, max].
CLI::Validator size_in(int64_t min, int64_t max);

// Every option that is added from here on shows its default in the help text.
void show_defaults(CLI::App& app);

// Adds --json, which all topics have.
void add_json_flag(CLI::App& app, bool& json);

}  // namespace lockstep::app
