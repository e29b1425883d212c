# ruff: noqa: C408 - written as users write theirs
"""The keys of the bird's-eye-view guide, in the form its project writes them."""

_base_ = ["../_base_/datasets/nuscenes.py", "../_base_/runtime.py"]

dataset_type = "NuscenesDataset"
data_root = "data/nuscenes"
img_norm_cfg = dict(mean=[123.675, 116.28, 103.53], std=[58.395, 57.12, 57.375], to_rgb=True)
size = (800, 600)
train_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(type="Resize", img_scale=size, keep_ratio=False),
    dict(type="PhotoMetricDistortion"),
    dict(type="Normalize", **img_norm_cfg),
]
test_pipeline = [dict(type="MultiScaleFlipAug", img_scale=size, flip=False)]
data = dict(
    samples_per_gpu=6,
    workers_per_gpu=12,
    pin_memory=True,
    persistent_workers=True,
    prefetch_factor=4,
    train=dict(
        type=dataset_type, data_root=data_root, ann_dir="ann/train", pipeline=train_pipeline
    ),
)
model = dict(
    type="BEVSegmentor",
    pretrained=None,
    backbone=dict(
        type="SwinTransformer",
        embed_dims=96,
        depths=[2, 2, 6, 2],
        out_indices=(3,),
        drop_path_rate=0.1,
        norm_cfg=dict(type="LN"),
    ),
    transformer=dict(
        type="TransformerLiftSplatShoot",
        bev_feature_channels=64,
        grid_conf=dict(
            dbound=[1, 50, 1],
            xbound=[-25, 25, 0.5],
            zbound=[1, 50, 0.5],
            ybound=[-10, 10, 2 * 10],
        ),
    ),
    decode_head=dict(type="PyramidHead", num_classes=14),
)
optimizer = dict(type="AdamW", lr=3e-4, betas=(0.9, 0.999), weight_decay=0.01)
optimizer_config = dict(grad_clip=dict(max_norm=35, norm_type=2))
lr_config = dict(
    _delete_=True,
    policy="poly",
    power=1.0,
    min_lr=3e-6,
    by_epoch=False,
    warmup="linear",
    warmup_iters=1500,
    warmup_ratio=1e-6,
)
runner = dict(type="IterBasedRunner", max_iters=200000, accumulative_counts=2)
fp16 = dict(loss_scale=512.0)
evaluation = dict(
    interval=20000, metric="mIoU", save_best="mIoU", efficient_test=True, pre_eval=True
)
checkpoint_config = dict(by_epoch=False, interval=5000, max_keep_ckpts=3)
log_config = dict(interval=50, hooks=[dict(type="TextLoggerHook")])
load_from = None
cudnn_benchmark = True
find_unused_parameters = bool("yes")
