#pragma once

// libcurl, loaded when s3:// is first used: with the thirty libraries that it brings it would cost
// every start of `lockstep` and of every rank 9 ms.

#define CURL_DISABLE_TYPECHECK
#include <curl/curl.h>

namespace lockstep::storage {

struct CurlLibrary {
  decltype(&curl_easy_init) easy_init = nullptr;
  decltype(&curl_easy_cleanup) easy_cleanup = nullptr;
  decltype(&curl_easy_reset) easy_reset = nullptr;
  decltype(&curl_easy_setopt) easy_setopt = nullptr;
  decltype(&curl_easy_perform) easy_perform = nullptr;
  decltype(&curl_easy_getinfo) easy_getinfo = nullptr;
  decltype(&curl_easy_strerror) easy_strerror = nullptr;
  decltype(&curl_slist_append) slist_append = nullptr;
  decltype(&curl_slist_free_all) slist_free_all = nullptr;
};

// Loads and starts it once. Throws IoError if this machine has none.
const CurlLibrary& curl();

}  // namespace lockstep::storage
