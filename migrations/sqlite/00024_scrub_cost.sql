-- What scrubbing may cost. Binaries of version 11 can work with this schema: their scrubs go by the
-- limits of bytes and requests alone.

-- +goose Up
INSERT INTO schema_versions (version, oldest) VALUES (24, 11);
-- Prices of 1,000 requests and of 1 GiB, and what may be spent a day (0: no limit), in billionths.
ALTER TABLE scrub ADD COLUMN price_requests INTEGER NOT NULL DEFAULT 0;
ALTER TABLE scrub ADD COLUMN price_bytes INTEGER NOT NULL DEFAULT 0;
ALTER TABLE scrub ADD COLUMN spend INTEGER NOT NULL DEFAULT 0;

-- +goose Down
ALTER TABLE scrub DROP COLUMN spend;
ALTER TABLE scrub DROP COLUMN price_bytes;
ALTER TABLE scrub DROP COLUMN price_requests;
DELETE FROM schema_versions WHERE version = 24;
