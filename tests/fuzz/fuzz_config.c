/* config.json: parsing, then the writer. What is written reads back as the same values. */
#include "base/json.h"
#include "checkpoint/internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    oz_err err = {0};
    json_t *v, *again;
    if (oz_json_parse(&v, (const char *)data, n, "fuzz.json", &err) != OZ_OK) {
        if (!err.msg[0]) __builtin_trap();
        return 0;
    }
    oz_buf text = {0};
    oz_json_write_hf(&text, v, true);
    if (oz_json_parse(&again, text.data, text.len, "again", &err) != OZ_OK || !json_equal(v, again)) __builtin_trap();
    json_decref(again);
    json_decref(v);
    oz_buf_deinit(&text);
    return 0;
}
