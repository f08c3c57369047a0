#include "bind.h"

NB_MODULE(_core, m) {
  m.doc() = "The C++ engine of Stoker. Use the typed API in `stoker`; this module has no stable interface.";
  stoker::bind_status(m);
#ifdef STOKER_BIND_TEXT
  stoker::bind_text(m);
#endif
#ifdef STOKER_BIND_MEDIA
  stoker::bind_media(m);
#endif
#ifdef STOKER_BIND_SOURCE
  stoker::bind_source(m);
#endif
#ifdef STOKER_BIND_MANIFEST
  stoker::bind_manifest(m);
#endif
#ifdef STOKER_BIND_PLAN
  stoker::bind_plan(m);
#endif
#ifdef STOKER_BIND_MODEL
  stoker::bind_model(m);
#endif
#ifdef STOKER_BIND_LOADER
  stoker::bind_loader(m);
#endif
#ifdef STOKER_BIND_INSPECT
  stoker::bind_inspect(m);
#endif
#ifdef STOKER_BIND_PROBE
  stoker::bind_probe(m);
#endif
#ifdef STOKER_BIND_FORECAST
  stoker::bind_forecast(m);
#endif
#ifdef STOKER_BIND_REMOTE
  stoker::bind_remote(m);
#endif
}
