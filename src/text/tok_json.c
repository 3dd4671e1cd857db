/* JSON paths, and the walk over one stage of tokenizer.json. */
#include "base/json.h"
#include "text/tok_internal.h"
#include <stdio.h>
#include <string.h>

/* A path too long for a message keeps its beginning. */
oz_jpath oz_jpath_key(oz_jpath base, const char *key) {
    size_t n = strlen(base.s);
    snprintf(base.s + n, sizeof base.s - n, "%s%s", n ? "." : "", key);
    return base;
}

oz_jpath oz_jpath_at(oz_jpath base, size_t i) {
    size_t n = strlen(base.s);
    snprintf(base.s + n, sizeof base.s - n, "[%zu]", i);
    return base;
}

static bool listed(const char *keys, const char *key, size_t n) {
    for (const char *p = keys; *p;) {
        size_t len = strcspn(p, "|");
        if (len == n && memcmp(p, key, n) == 0) return true;
        p += len + (p[len] == '|');
    }
    return false;
}

oz_status oz_json_keys(const json_t *obj, oz_jpath path, const char *keys, oz_err *err) {
    OZ_NEED(json_is_object(obj), err, OZ_E_FORMAT, "%s: must be an object, found %s", path.s, oz_json_show(obj));
    const char *key;
    size_t n;
    json_t *v;
    json_object_keylen_foreach((json_t *)obj, key, n, v)
        OZ_NEED(listed(keys, key, n), err, OZ_E_UNSUPPORTED, "%s: not supported, expected one of %s; found %s", oz_jpath_key(path, key).s,
                keys, oz_json_show(v));
    return OZ_OK;
}

oz_status oz_json_flag(bool *out, const json_t *obj, oz_jpath path, const char *key, oz_err *err) {
    int v = *out;
    OZ_TRY(oz_json_bool(&v, obj, path.s, key, err));
    *out = v;
    return OZ_OK;
}

oz_status oz_stage_parse(void *self, const oz_stage_row *rows, const json_t *v, oz_jpath path, oz_err *err) {
    if (!v || json_is_null(v)) return OZ_OK;
    OZ_NEED(json_is_object(v), err, OZ_E_FORMAT, "%s: must be an object or null, found %s", path.s, oz_json_show(v));
    const char *type = NULL;
    OZ_TRY(oz_json_str(&type, v, path.s, "type", err));
    OZ_NEED(type, err, OZ_E_FORMAT, "%s.type: must be a string, found %s", path.s, oz_json_show(json_object_get(v, "type")));
    const oz_stage_row *row = rows;
    while (row->type && strcmp(row->type, type) != 0) row++;
    OZ_NEED(row->type, err, OZ_E_UNSUPPORTED, "%s.type: \"%.80s\" is not supported", path.s, type);
    OZ_TRY(oz_json_keys(v, path, row->keys, err));
    if (!row->list) return row->parse(self, v, path, err);
    const json_t *list = json_object_get(v, row->list);
    oz_jpath at = oz_jpath_key(path, row->list);
    OZ_NEED(json_is_array(list), err, OZ_E_FORMAT, "%s: must be an array, found %s", at.s, oz_json_show(list));
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *item = json_array_get(list, i);
        OZ_NEED(json_is_object(item), err, OZ_E_FORMAT, "%s: must be an object, found %s", oz_jpath_at(at, i).s, oz_json_show(item));
        OZ_TRY(oz_stage_parse(self, rows, item, oz_jpath_at(at, i), err));
    }
    return OZ_OK;
}
