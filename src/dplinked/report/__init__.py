"""Reports: a document model, its writers and its charts. Nothing here knows what is reported on."""
