//! tidelog-minio-dev
