-- What scrubbing may cost. Binaries of version 2 can work with this schema: their scrubbers go by
-- the limits of bytes and requests alone.

-- +goose Up
SET LOCAL lock_timeout = '5s';
INSERT INTO schema_versions (version, oldest) VALUES (24, 2);
-- Prices of 1,000 requests and of 1 GiB, and what may be spent a day (0: no limit), in billionths.
ALTER TABLE scrub ADD COLUMN price_requests bigint NOT NULL DEFAULT 0, ADD COLUMN price_bytes bigint NOT NULL DEFAULT 0,
    ADD COLUMN spend bigint NOT NULL DEFAULT 0;

-- +goose Down
ALTER TABLE scrub DROP COLUMN spend, DROP COLUMN price_bytes, DROP COLUMN price_requests;
DELETE FROM schema_versions WHERE version = 24;
